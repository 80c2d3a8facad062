// The header and the tiles: does it train, how fast, on how many nodes.
import { $, at, nowSeconds, number, percent, setClock, setText, span } from "./dom.js";

let now = null;
let ledger = null;
let contact = { live: true, line: "", since: 0 };
let streaming = false;

export function showNow(frame) {
  now = frame;
  if (!frame.over) setClock(frame.time);
  const { headline } = frame;
  $("verdict").dataset.tone = headline.tone;
  setText("word", headline.word);
  setText("job", frame.job);
  setText("line", headline.line);
  $("line").title = headline.line;
  document.title = `${headline.word} · ${frame.step === null ? "" : `step ${number(frame.step)} · `}${frame.job}`;
  setText("t-step", number(frame.step));
  setText("t-pace", span(frame.seconds));
  setText("t-pace-sub", frame.seconds ? `${rate(1 / frame.seconds)}${frame.slowest ? `, slowest ${span(frame.slowest)}` : ""}` : "");
  setText("t-nodes", `${number(frame.here)} / ${number(frame.wanted)}`);
  setText("t-nodes-sub", `${number(frame.ranks)} ranks${frame.spares ? `, ${frame.spares} spare` : ""}${excluded(frame)}`);
  setText("t-gen", number(frame.generation));
  setText("t-gen-sub", `coordinator term ${frame.term}`);
  setText("t-restarts", `${frame.restarts} / ${frame.allowed}`);
  setText("t-restarts-sub", frame.last_fault ? frame.last_fault : "no fault so far");
  $("t-restarts-sub").title = frame.last_fault;
  tick();
}

const rate = (perSecond) => (perSecond >= 1 ? `${perSecond.toFixed(2)} steps/s` : `${(perSecond * 60).toFixed(1)} steps/min`);
const excluded = (frame) => (frame.excluded.length ? `, ${frame.excluded.length} excluded` : "");

export function showLedger(frame) {
  ledger = frame;
  setText("t-good", percent(frame.goodput));
  setText("t-good-sub", `${span(frame.wall - (frame.time.productive ?? 0))} lost of ${span(frame.wall)}`);
  setText("t-step-sub", frame.steps_lost ? `${number(frame.steps_lost)} steps lost` : "no step lost");
}

export function showContact(frame) {
  contact = frame;
  tick();
}

export function showLive(on) {
  streaming = on;
  tick();
}

// Once a second: what grows older by itself.
export function tick() {
  const trouble = !streaming ? "no contact with this page's server; trying again" : contact.line;
  const over = Boolean(now?.over);
  const fine = streaming && (contact.live || over);
  $("contact").dataset.live = fine ? (over ? "wait" : "yes") : "no";
  setText("contact-text", fine ? (over ? "the job is over" : `live · ${at(nowSeconds())}`) : "out of contact");
  const alert = fine ? "" : trouble;
  $("alert").hidden = !alert;
  setText("alert", alert);
  if (!now) return;
  const [step, saved] = now.snapshot ?? [null, 0];
  setText("t-snap", step === null ? "–" : span(Math.max(0, Math.round(nowSeconds() - saved))));
  setText("t-snap-sub", step === null ? "none in memory" : `old, step ${number(step)}`);
  if (!ledger) setText("t-good-sub", "");
}
