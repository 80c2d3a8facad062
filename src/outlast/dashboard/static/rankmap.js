// All ranks on one canvas, in blocks by node. Where there are too many for a cell each, a cell is a node.
import { $, canvas, color, el, number, setText } from "./dom.js";

// Letter: colour, what it means, how much it matters.
export const STATES = {
  0: ["r0", "at the median's pace", 0], f: ["rf", "finished", 0], r: ["rr", "spare", 0], i: ["rr", "idle", 1], s: ["rs", "no step yet", 1],
  1: ["r1", "over 1.1 × the median", 2], d: ["rd", "draining", 3], 2: ["r2", "over 1.25 × the median", 4], 3: ["r3", "over 1.5 × the median", 5],
  c: ["rl", "cut off", 6], l: ["rl", "out of contact", 7], x: ["rx", "failed", 8],
};
const LEGEND = [["0", "median pace"], ["1", "> 1.1 ×"], ["2", "> 1.25 ×"], ["3", "> 1.5 ×"], ["s", "no step yet"], ["l", "out of contact"]];
const CROSSED = new Set(["l", "c", "x"]);
let nodes = { names: [], ids: [], workers: [], first: [] };
let letters = "";
let marked = new Set(); // ranks that a hang or a straggler named
let starts = []; // of each node: its first cell
let layout = null;
let here = -1;
let chosen = () => {};
const draw = canvas($("map"), paint);
export const redrawMap = draw;

export function startMap(onChoose) {
  chosen = onChoose;
  const node = $("map");
  node.addEventListener("pointermove", (event) => move(cellAt(event.offsetX, event.offsetY)));
  node.addEventListener("pointerleave", () => document.activeElement !== node && move(-1));
  node.addEventListener("click", () => here >= 0 && open(here));
  node.addEventListener("focus", () => here < 0 && letters && move(0));
  node.addEventListener("keydown", keys);
  $("map-legend").append(...LEGEND.map(([letter, text]) => el("li", {}, swatch(letter), text)));
}

export function swatch(letter) {
  const node = el("span", { class: "swatch" });
  node.style.background = `var(--${STATES[letter][0]})`;
  return node;
}

export function showNodes(frame) {
  const workers = unrun(frame.workers.filter((_, at) => at % 2 === 0), frame.workers.filter((_, at) => at % 2 === 1));
  starts = [0];
  for (const count of workers) starts.push(starts.at(-1) + count);
  nodes = { ...frame, workers, first: frame.first.length ? frame.first : starts.slice(0, -1), ids: frame.ids.length ? frame.ids : frame.names };
  setText("map-size", `${number(frame.names.length)} nodes, ${number(starts.at(-1))} ranks`);
  const count = starts.at(-1);
  $("map").dataset.size = count <= 64 ? "small" : count <= 1000 ? "medium" : "large";
  layout = null;
  draw();
}

export function showRanks(frame) {
  letters = unrun([...frame.letters], frame.counts).join("");
  attention();
  if (here >= 0) tell();
  draw();
}

export function showMarked(ranks) {
  marked = new Set(ranks);
  attention();
  draw();
}

export const nodeList = () => nodes;
const unrun = (values, counts) => values.flatMap((value, at) => Array(counts[at]).fill(value));

function nodeOf(cell) {
  let low = 0;
  let high = nodes.names.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= cell) low = middle;
    else high = middle - 1;
  }
  return low;
}

function rankOf(cell) {
  const node = nodeOf(cell);
  return nodes.first[node] < 0 ? -1 : nodes.first[node] + cell - starts[node];
}

const weight = (cell) => STATES[letters[cell]]?.[2] ?? 0;
const needs = (cell) => weight(cell) >= 2 || marked.has(rankOf(cell));

function attention() {
  const found = [];
  for (let cell = 0; cell < letters.length; cell += 1) if (needs(cell)) found.push(cell);
  found.sort((a, b) => marked.has(rankOf(b)) - marked.has(rankOf(a)) || weight(b) - weight(a));
  const list = $("attention");
  const key = found.slice(0, 6).map((cell) => `${cell}${letters[cell]}`).join();
  if (list.dataset.key === `${key}/${found.length}`) return;
  list.dataset.key = `${key}/${found.length}`;
  const items = found.slice(0, 6).map((cell) => {
    const button = el("button", { type: "button", title: STATES[letters[cell]][1], onclick: () => open(cell) }, swatch(letters[cell]), ` ${name(cell)}`);
    return el("li", {}, button);
  });
  if (found.length > 6) items.push(el("li", { class: "muted" }, `and ${number(found.length - 6)} more`));
  if (!found.length && letters) items.push(el("li", { class: "muted" }, "No rank needs attention."));
  list.replaceChildren(...items);
}

function name(cell) {
  const rank = rankOf(cell);
  return rank < 0 ? nodes.names[nodeOf(cell)] : `rank ${rank} · ${nodes.names[nodeOf(cell)]}`;
}

function tell() {
  const flags = marked.has(rankOf(here)) ? "; named by the last hang or straggler event" : "";
  setText("map-out", here < 0 ? "Point at a rank, or focus the map and use the arrow keys." : `${name(here)}: ${STATES[letters[here]]?.[1] ?? "unknown"}${flags}`);
}

function move(cell) {
  if (cell === here) return;
  here = cell;
  tell();
  draw();
}

function open(cell) {
  move(cell);
  const rank = rankOf(cell);
  if (rank >= 0) chosen(rank);
}

function keys(event) {
  if (!layout || !letters) return;
  const last = letters.length - 1;
  const row = layout.byNode ? layout.perRow : layout.perRow * (nodes.workers[0] || 1);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, PageDown: row * 5, PageUp: -row * 5 };
  let next = here < 0 ? 0 : here;
  if (event.key in steps) next += steps[event.key];
  else if (event.key === "Home") next = 0;
  else if (event.key === "End") next = last;
  else if (event.key === "n" || event.key === "p") next = jump(event.key === "n" ? 1 : -1);
  else if (event.key === "Enter" || event.key === " ") open(next);
  else return;
  event.preventDefault();
  event.stopPropagation();
  move(Math.max(0, Math.min(last, next)));
}

function jump(by) {
  for (let cell = here + by; cell >= 0 && cell < letters.length; cell += by) if (needs(cell)) return cell;
  return here;
}

// The largest cells that fit. A block is a node: as square as its number of ranks allows.
function arrange(width, height) {
  const most = Math.max(1, ...nodes.workers);
  const columns = Math.ceil(Math.sqrt(most * (most > 3 ? 2 : 1)));
  const rows = Math.ceil(most / columns);
  for (let cell = 30; cell >= 4; cell -= cell > 12 ? 2 : 1) {
    const gap = cell >= 14 ? 8 : cell >= 7 ? 4 : 2;
    const label = cell >= 22 ? 15 : 0; // room for the node's name
    const block = Math.max(columns * cell, label && 76);
    const perRow = Math.floor((width + gap) / (block + gap));
    const tall = rows * cell + gap + label;
    if (perRow && Math.ceil(nodes.names.length / perRow) * tall - gap <= height) return { cell, gap, columns, rows, perRow, block, label, tall, byNode: false };
  }
  for (let cell = 8; cell >= 1; cell -= 1) {
    const perRow = Math.floor(width / cell);
    if (cell === 1 || Math.ceil(nodes.names.length / perRow) * cell <= height) return { cell, gap: 0, columns: 1, rows: 1, perRow, block: cell, label: 0, tall: cell, byNode: true };
  }
}

function placeOf(cell) {
  const node = nodeOf(cell);
  const inner = layout.byNode ? 0 : cell - starts[node];
  const left = (node % layout.perRow) * (layout.block + layout.gap) + (inner % layout.columns) * layout.cell;
  const top = Math.floor(node / layout.perRow) * layout.tall + layout.label + Math.floor(inner / layout.columns) * layout.cell;
  return [left + 1, top + 1];
}

function cellAt(x, y) {
  if (!layout || !letters) return -1;
  const { cell, gap, columns, rows, perRow, block, label, tall, byNode } = layout;
  const column = Math.floor(x / (block + gap));
  const node = Math.floor(y / tall) * perRow + column;
  const across = Math.floor((x % (block + gap)) / cell);
  const down = Math.floor(((y % tall) - label) / cell);
  if (down < 0 || column >= perRow || node >= nodes.names.length || across >= columns || down >= rows) return -1;
  if (byNode) return worst(node);
  return across + down * columns < nodes.workers[node] ? starts[node] + across + down * columns : -1;
}

function worst(node) {
  let found = starts[node];
  for (let cell = starts[node]; cell < starts[node + 1]; cell += 1) if (weight(cell) > weight(found)) found = cell;
  return found;
}

function paint(context, width, height) {
  if (!letters || starts.at(-1) !== letters.length) return;
  if (!layout || layout.width !== width) layout = { ...arrange(width, height), width };
  const { cell, byNode } = layout;
  const inset = cell >= 4 ? 1 : 0;
  const size = cell - inset;
  const groups = {};
  const count = byNode ? nodes.names.length : letters.length;
  for (let at = 0; at < count; at += 1) {
    const index = byNode ? worst(at) : at;
    (groups[letters[index]] ??= []).push(index);
  }
  for (const [letter, cells] of Object.entries(groups)) {
    context.fillStyle = color(STATES[letter]?.[0] ?? "rs");
    for (const index of cells) context.fillRect(...placeOf(index), size, size);
    if (CROSSED.has(letter) && size >= 4) cross(context, cells, size);
    if ((letter === "2" || letter === "3") && size >= 4) notch(context, cells, size);
  }
  if (layout.label) labels(context);
  outline(context, [...marked].map(cellOf).filter((index) => index >= 0), "text", 1.5, size);
  if (here >= 0) outline(context, [here], "focus", 2, size);
}

function labels(context) {
  context.font = "11px system-ui, DejaVu Sans, sans-serif";
  context.fillStyle = color("muted");
  nodes.names.forEach((each, index) => {
    const [left, top] = placeOf(starts[index]);
    context.fillText(each, left, top - 4, layout.block);
  });
}

function cellOf(rank) {
  const node = nodes.first.findLastIndex((first) => first >= 0 && first <= rank);
  return node >= 0 && rank - nodes.first[node] < nodes.workers[node] ? starts[node] + rank - nodes.first[node] : -1;
}

// Not by colour alone: what is lost is crossed out, what is slow has a notch.
function cross(context, cells, size) {
  context.strokeStyle = color("panel");
  context.lineWidth = Math.max(1, size / 8);
  context.beginPath();
  for (const index of cells) {
    const [left, top] = placeOf(index);
    context.moveTo(left + 1, top + 1);
    context.lineTo(left + size - 1, top + size - 1);
    context.moveTo(left + size - 1, top + 1);
    context.lineTo(left + 1, top + size - 1);
  }
  context.stroke();
}

function notch(context, cells, size) {
  context.fillStyle = color("panel");
  for (const index of cells) {
    const [left, top] = placeOf(index);
    const side = Math.max(1.5, size / 3);
    context.fillRect(left + size - side, top, side, side);
  }
}

function outline(context, cells, tone, line, size) {
  context.strokeStyle = color(tone);
  context.lineWidth = line;
  for (const index of cells) {
    const [left, top] = placeOf(index);
    context.strokeRect(left - 0.5, top - 0.5, size + 1, size + 1);
  }
}
