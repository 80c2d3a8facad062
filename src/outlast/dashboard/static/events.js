// The list of events, newest first, in the words of the log.
import { $, at, dayOf, el, radios } from "./dom.js";

const FILTERS = [["all", "All"], ["fault", "Faults"], ["change", "Changes"]];
const KEEP = { all: () => true, fault: (row) => ["fault", "warn"].includes(row.tone), change: (row) => ["change", "good"].includes(row.tone) };
const PAGE = 200;
let rows = [];
let filter = "all";
let most = PAGE;
let pick = () => {};

export function startEvents() {
  pick = radios($("filters"), FILTERS, filter, (value) => {
    filter = value;
    most = PAGE;
    fill();
  });
  $("older").addEventListener("click", () => {
    most += PAGE;
    fill();
  });
}

export const toggleFaults = () => pick(filter === "fault" ? "all" : "fault");

export function addRows(anew, more) {
  rows = anew ? more : rows.concat(more);
  if (anew || more.length > PAGE) return fill();
  const list = $("rows");
  for (const row of more) if (KEEP[filter](row)) list.prepend(...item(row, null));
  while (list.children.length > most + 50) list.lastChild.remove();
}

export const allRows = () => rows;

function fill() {
  const shown = rows.filter(KEEP[filter]);
  const items = [];
  let before = null;
  for (const row of shown.slice(-most).reverse()) {
    items.push(...item(row, before));
    before = row;
  }
  $("rows").replaceChildren(...items);
  $("older").hidden = shown.length <= most;
}

function item(row, before) {
  const made = [];
  if (before && dayOf(before.t) !== dayOf(row.t)) made.push(el("li", { class: "day" }, dayOf(row.t)));
  const text = el("div", { class: "text" }, row.text);
  if (row.detail) text.append(el("details", {}, el("summary", {}, row.k === "hang" ? "stacks" : "details"), el("pre", {}, row.detail)));
  const when = el("time", { datetime: new Date(row.t * 1000).toISOString(), title: new Date(row.t * 1000).toISOString() }, at(row.t));
  const mark = el("span", { class: "mark", role: "img", "aria-label": row.tone });
  made.push(el("li", { "data-tone": row.tone, "data-number": row.n, tabindex: "-1" }, when, mark, text));
  return made;
}

export function showRow(row) {
  const find = () => $("rows").querySelector(`[data-number="${row.n}"]`);
  if (!find()) {
    most = rows.length;
    pick("all");
  }
  for (const other of $("rows").querySelectorAll(".here")) other.classList.remove("here");
  const node = find();
  node?.classList.add("here");
  node?.scrollIntoView({ block: "center" });
  node?.focus({ preventScroll: true });
}
