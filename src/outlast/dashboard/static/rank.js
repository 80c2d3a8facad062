// One rank: how it gets on, and the end of its log. Asked for only while it is shown.
import { $, ask, el, number, setText, span } from "./dom.js";

let rank = null;
let local = null;
let logs = false;
let size = -1;
let listed = "";

export function startRank(hasLogs) {
  logs = hasLogs;
  $("rank-file").addEventListener("change", () => {
    size = -1;
    readLog();
  });
}

export async function chooseRank(which) {
  rank = which;
  local = null;
  size = -1;
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
  if (local !== about.local_rank) {
    local = about.local_rank;
    listFiles();
  }
}

async function listFiles() {
  if (!logs) return setText("rank-log", "Start the page with --log-dir to read logs here.");
  const files = await ask(`api/logs?local_rank=${local}`);
  const key = files.map((file) => file.name).join();
  if (key !== listed) {
    listed = key;
    $("rank-file").replaceChildren(...files.map((file) => el("option", { value: file.name }, file.name)));
  }
  size = -1;
  await readLog();
}

async function readLog() {
  const file = $("rank-file").value;
  if (!logs || local === null) return;
  if (!file) return setText("rank-log", "This rank has no log in the log directory (--redirects or --tee write them).");
  try {
    const tail = await ask(`api/log?file=${encodeURIComponent(file)}`);
    if (tail.size === size) return;
    size = tail.size;
    const box = $("rank-log");
    const bottom = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    setText(box, `${tail.cut ? "…\n" : ""}${tail.text || "(empty)"}`);
    if (bottom) box.scrollTop = box.scrollHeight;
  } catch (error) {
    setText("rank-log", error.message);
  }
}
