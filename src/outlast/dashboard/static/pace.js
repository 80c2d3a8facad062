// Step time of the median and the slowest rank, and the steps that faults cost.
import { $, at, color, number, setText, span } from "./dom.js";

let samples = [];
let lost = []; // [time, steps]
let plot = null;
let bounds = () => [0, 1];

export function startPace(getBounds) {
  bounds = getBounds;
  new ResizeObserver(() => plot && plot.setSize(size())).observe($("pace"));
}

export function showPace({ anew, samples: more }) {
  samples = anew ? more : samples.concat(more);
  if (samples.length > 1500) samples = samples.filter((each, index) => index > 750 || index % 2 === 0 || each[2] === null);
  redrawPace();
}

export function showLost(faults) {
  lost = faults.filter((each) => each.steps_lost).map((each) => [each.at, each.steps_lost]);
  redrawPace();
}

const size = () => ({ width: $("pace").clientWidth, height: $("pace").clientHeight });

function columns() {
  const [from, to] = bounds();
  const shown = samples.filter((each) => each[0] >= from && each[0] <= to);
  const points = shown.map((each) => [each[0], each[2], each[3] ?? null, null]);
  for (const [time, steps] of lost) if (time >= from && time <= to) points.push([time, undefined, undefined, steps]);
  points.sort((a, b) => a[0] - b[0]);
  return [0, 1, 2, 3].map((column) => points.map((point) => point[column]));
}

export function redrawPace(fresh = false) {
  if (document.hidden || !window.uPlot || !size().width) return;
  if (fresh && plot) {
    plot.destroy();
    plot = null;
  }
  const [from, to] = bounds();
  if (!plot) plot = new window.uPlot(options(), columns(), $("pace"));
  else plot.setData(columns(), false);
  plot.setScale("x", { min: from, max: to });
  summary();
}

function summary() {
  const last = samples.findLast((each) => each[2] !== null);
  const steps = lost.reduce((sum, each) => sum + each[1], 0);
  setText("pace-out", last ? `median rank ${span(last[2])} a step, slowest ${span(last[3])}${steps ? `; ${number(steps)} steps lost to faults` : ""}` : "no steps yet");
}

function options() {
  const grid = { stroke: color("edge"), width: 1 };
  const axis = { stroke: color("muted"), grid, ticks: grid, font: "11px system-ui, DejaVu Sans, sans-serif" };
  return {
    ...size(),
    padding: [8, 0, 0, 0],
    tzDate: (time) => new Date(time * 1000),
    cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { size: 5 } },
    legend: { show: false },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high * 1.15, 0.001)] }, lost: { range: (_, low, high) => [0, Math.max(high * 3, 1)] } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((time) => at(time).slice(0, 5)), space: 90, size: 30 },
      { ...axis, values: (_, ticks) => ticks.map((value) => (value ? span(value) : "0")), size: 62 },
      { ...axis, scale: "lost", side: 1, grid: { show: false }, size: 44, values: (_, ticks) => ticks.map((value) => (Number.isInteger(value) ? number(value) : "")) },
    ],
    series: [
      {},
      { label: "median", stroke: color("good"), width: 1.6, points: { show: false } },
      { label: "slowest", stroke: color("warn"), width: 1, dash: [4, 3], points: { show: false } },
      { label: "steps lost", scale: "lost", stroke: color("fault"), fill: color("fault"), paths: window.uPlot.paths.bars({ size: [0.02, 6, 3] }), points: { show: false } },
    ],
    hooks: { setCursor: [cursor] },
  };
}

function cursor(chart) {
  const index = chart.cursor.idx;
  if (index === null || index === undefined) return summary();
  const [time, median, slowest, steps] = chart.data.map((column) => column[index]);
  if (steps) setText("pace-out", `${at(time)}  ${number(steps)} steps lost`);
  else if (median) setText("pace-out", `${at(time)}  median ${span(median)}, slowest ${span(slowest)}`);
}
