// One rank: how it gets on, and the end of its log. Asked for only while it is shown.
import { $, ask, el, number, setText, span } from "./dom.js";

const EVERY = 2000; // ms between two looks at the log

let rank = null;
let read = 0;
let reading = false;

export async function chooseRank(which) {
  rank = which;
  read = 0;
  $("rank-none").hidden = true;
  $("rank-body").hidden = false;
  setText("rank-title", `Rank ${which}`);
  setText("rank-log", "");
  await refreshRank();
}

export async function refreshRank() {
  if (rank === null || $("rank").hidden) return;
  try {
    const about = await ask(`api/rank?rank=${rank}`);
    if (about.rank === rank) facts(about);
  } catch (error) {
    setText("rank-title", `Rank ${rank}: ${error.message}`);
  }
  await readLog();
}

function facts(about) {
  setText("rank-title", `Rank ${about.rank} on ${about.node}`);
  const pairs = [
    ["Workers of the node", about.connected ? about.state : `${about.state}; out of contact`],
    ["Local rank", number(about.local_rank)],
    ["Step", number(about.step)],
    ["Step time", span(about.seconds)],
    ["Main thread busy", about.busy === null ? "–" : `${span(about.busy)} a step`],
    ["Waits for others in", about.waited || "–"],
  ];
  $("rank-facts").replaceChildren(...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const bars = Object.entries(about.sections).sort((a, b) => b[1] - a[1]).flatMap(([name, seconds]) => {
    const bar = el("i");
    bar.style.width = `${Math.min(100, (100 * seconds) / (about.seconds || seconds))}%`;
    return [el("span", {}, name), el("div", {}, bar), el("span", { class: "muted" }, span(seconds))];
  });
  $("rank-sections").replaceChildren(...bars);
}

async function readLog() {
  if (reading || Date.now() - read < EVERY) return;
  const of = rank;
  reading = true;
  const box = $("rank-log");
  try {
    const tail = await ask(`api/log?rank=${of}`);
    if (of !== rank) return;
    const bottom = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    setText(box, tail.problem || `${tail.cut ? "…\n" : ""}${tail.text || "(empty)"}`);
    if (bottom) box.scrollTop = box.scrollHeight;
  } catch (error) {
    if (of === rank) setText(box, error.message);
  } finally {
    reading = false;
    if (of === rank) read = Date.now();
  }
}
