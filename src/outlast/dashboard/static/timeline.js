// Generations as a strip, the gaps between them, and a mark for each event that somebody would ask about.
import { $, at, canvas, color, nowSeconds, radios, setText, span } from "./dom.js";

const RANGES = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["all", "All"]];
const LANES = { strip: [10, 26], marks: 54, axis: 92 };
const SHAPES = { fault: "▲", warn: "◆", change: "●", good: "✓", info: "○" };
const WEIGHT = { info: 0, good: 0, change: 1, warn: 2, fault: 3 };
let generations = [];
let marks = [];
let began = 0;
let ended = null;
let range = "all";
let current = -1;
let shown = () => {};
let chosenRange = () => {};
const draw = canvas($("timeline"), paint);

export function startTimeline(onShow, onRange) {
  shown = onShow;
  chosenRange = onRange;
  radios($("ranges"), RANGES, range, (value) => {
    range = value;
    draw();
    chosenRange(bounds());
  });
  const node = $("timeline");
  node.addEventListener("keydown", keys);
  node.addEventListener("pointermove", (event) => point(event.offsetX));
  node.addEventListener("pointerleave", () => setText("time-out", summary()));
  node.addEventListener("click", () => current >= 0 && shown(marks[current]));
}

export const redrawTimeline = draw;

// All rows, in order: what the strip is made of.
export function showStory(rows) {
  generations = [];
  marks = [];
  ended = null;
  for (const row of rows) {
    if (row.k === "generation formed") generations.push({ number: row.g, from: row.t, to: null, planned: false, text: row.text });
    const last = generations.at(-1);
    if (row.k === "generation ending" && last && last.to === null) Object.assign(last, { to: row.t, planned: Boolean(row.planned) });
    if (row.k === "job over") {
      ended = row.t;
      if (last && last.to === null) Object.assign(last, { to: row.t, planned: true });
    }
    if (["fault", "warn", "change"].includes(row.tone) || row.k === "job over") marks.push(row);
  }
  began = rows[0]?.t ?? 0;
  current = Math.min(current, marks.length - 1);
  setText("time-out", summary());
  draw();
}

export function bounds() {
  const to = ended ?? nowSeconds();
  const from = range === "all" ? began : Math.max(began, to - Number(range));
  return [from, Math.max(to, from + 10)];
}

const summary = () => (generations.length ? `${generations.length} generations in ${span((ended ?? nowSeconds()) - began)}; ${marks.filter((m) => m.tone === "fault").length} fault events` : "");

function keys(event) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by) current = Math.max(0, Math.min(marks.length - 1, current < 0 ? marks.length - 1 : current + by));
  else if (event.key === "Home") current = 0;
  else if (event.key === "End") current = marks.length - 1;
  else if (event.key === "Enter" && current >= 0) shown(marks[current]);
  else return;
  event.preventDefault();
  tell();
}

function tell() {
  const mark = marks[current];
  setText("time-out", mark ? `${SHAPES[mark.tone]} ${at(mark.t)}  ${mark.text}` : summary());
  draw();
}

function point(x) {
  const [from, to] = bounds();
  const width = $("timeline").clientWidth;
  const place = (time) => ((time - from) / (to - from)) * width;
  let best = -1;
  for (let index = 0; index < marks.length; index += 1) {
    const far = Math.abs(place(marks[index].t) - x);
    if (far < 9 && (best < 0 || far <= Math.abs(place(marks[best].t) - x))) best = index;
  }
  if (best !== current) {
    current = best;
    tell();
  }
  if (best < 0) {
    const time = from + (x / width) * (to - from);
    const running = generations.findLast((each) => each.from <= time);
    if (running) setText("time-out", `${at(time)}  ${running.to === null || time < running.to ? running.text : `between generations ${running.number} and ${running.number + 1}`}`);
  }
}

function paint(context, width) {
  const [from, to] = bounds();
  const place = (time) => ((time - from) / (to - from)) * width;
  const [top, height] = LANES.strip;
  context.font = "11px system-ui, DejaVu Sans, sans-serif";
  axis(context, width, from, to);
  if (!began) return;
  generations.forEach((each, index) => {
    const left = Math.max(0, place(each.from));
    const right = Math.min(width, place(each.to ?? to));
    if (right > 0) {
      context.fillStyle = color(index % 2 ? "bar" : "r0");
      context.fillRect(left, top, Math.max(1, right - left - 0.5), height);
      const label = `gen ${each.number}`;
      const wide = context.measureText(label).width;
      if (right - left > wide + 12) {
        context.fillStyle = color("on");
        context.fillText(label, left + 6, top + 17);
      }
    }
    const next = generations[index + 1]?.from ?? (each.to !== null && ended === null ? to : null);
    if (each.to !== null && next !== null) {
      context.fillStyle = color(each.planned ? "change" : "fault");
      const gap = Math.max(0, place(each.to));
      context.fillRect(gap, top - 3, Math.max(1.5, place(next) - gap), height + 6);
    }
  });
  context.textAlign = "center";
  const order = marks.map((_, index) => index).sort((a, b) => WEIGHT[marks[a].tone] - WEIGHT[marks[b].tone] || a - b);
  order.forEach((index) => {
    const mark = marks[index];
    const x = place(mark.t);
    if (x < -5 || x > width + 5) return;
    context.fillStyle = color(mark.tone);
    context.font = index === current ? "16px DejaVu Sans, sans-serif" : "11px DejaVu Sans, sans-serif";
    context.fillText(SHAPES[mark.tone], Math.max(6, Math.min(width - 6, x)), LANES.marks + (index === current ? 2 : 0));
    if (index === current) {
      context.fillRect(x - 0.5, top - 5, 1, height + 12);
    }
  });
  context.textAlign = "left";
}

const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 604800];

function axis(context, width, from, to) {
  const step = STEPS.find((each) => (to - from) / each <= width / 110) ?? 2_592_000;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  context.strokeStyle = color("edge");
  context.fillStyle = color("muted");
  for (let time = Math.ceil((from - zone) / step) * step + zone; time < to; time += step) {
    const x = Math.round(((time - from) / (to - from)) * width) + 0.5;
    context.beginPath();
    context.moveTo(x, 4);
    context.lineTo(x, 76);
    context.stroke();
    const label = step >= 86400 ? new Date(time * 1000).toLocaleDateString() : at(time).slice(0, step < 60 ? 8 : 5);
    context.fillText(label, x - (x > width - 40 ? 34 : 0), LANES.axis - 1);
  }
}
