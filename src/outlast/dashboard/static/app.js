// Wires the parts of the page together.
import { startActions } from "./actions.js";
import { $, ask, setText } from "./dom.js";
import { addRows, allRows, showRow, startEvents, toggleFaults } from "./events.js";
import { showContact, showLedger as showGoodput, showLive, showNow, tick } from "./header.js";
import { showLedger } from "./ledger.js";
import { redrawPace, showLost, showPace, startPace } from "./pace.js";
import { chooseRank, refreshRank } from "./rank.js";
import { redrawMap, showMarked, showNodes, showRanks, startMap } from "./rankmap.js";
import { follow } from "./stream.js";
import { bounds, redrawTimeline, showStory, startTimeline } from "./timeline.js";

const TABS = ["events", "rank", "act"];
let job = "";

const frames = {
  now(frame) {
    job = frame.job;
    showNow(frame);
  },
  contact: showContact,
  nodes: showNodes,
  ranks: showRanks,
  ledger(frame) {
    showGoodput(frame);
    showLedger(frame);
    showLost(frame.faults);
  },
  pace: showPace,
  story({ anew, rows }) {
    addRows(anew, rows);
    showStory(allRows());
    showMarked(suspects(allRows()));
  },
};

// Ranks that the newest generation's hangs and stragglers name; a straggler that is one no longer is an "info".
function suspects(rows) {
  const found = new Set();
  const formed = rows.findLastIndex((row) => row.k === "generation formed");
  for (const row of rows.slice(Math.max(0, formed))) {
    for (const rank of row.ranks ?? []) {
      if (row.k === "hang" || (row.k === "straggler" && row.tone === "warn")) found.add(rank);
      else if (row.k === "straggler") found.delete(rank);
    }
  }
  return found;
}

function showTab(name, focus = true) {
  for (const each of TABS) {
    const on = each === name;
    $(each).hidden = !on;
    $(`tab-${each}`).setAttribute("aria-selected", on);
    $(`tab-${each}`).tabIndex = on ? 0 : -1;
  }
  $("filters").hidden = name !== "events";
  if (focus) $(`tab-${name}`).focus();
}

function startTabs() {
  for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => showTab(name));
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const here = TABS.findIndex((name) => document.activeElement === $(`tab-${name}`));
    if (!by || here < 0) return;
    const open = TABS.filter((name) => !$(`tab-${name}`).hidden);
    event.preventDefault();
    $(`tab-${open[(open.indexOf(TABS[here]) + by + open.length) % open.length]}`).click();
  });
}

function startKeys() {
  const keys = {
    e: () => showTab("events"),
    m: () => $("map").focus(),
    l: () => $("timeline").focus(),
    f: () => toggleFaults(),
    t: () => toggleTheme(),
    "?": () => $("help").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  $("help-open").addEventListener("click", keys["?"]);
  $("theme").addEventListener("click", toggleTheme);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : !matchMedia("(prefers-color-scheme: light)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("outlast-theme", root.dataset.theme);
  redraw(true);
}

function redraw(fresh = false) {
  redrawTimeline();
  redrawMap();
  redrawPace(fresh);
}

// The token comes in the fragment, which no server or proxy ever sees. It is exchanged for a cookie and forgotten.
async function enter(token) {
  await ask("api/session", { method: "POST", headers: { authorization: `Bearer ${token}` } });
}

async function login() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname);
    await enter(given).catch((error) => sayRefused(error.message));
  }
}

function sayRefused(why) {
  $("login-line").dataset.bad = "";
  setText("login-line", why);
}

function askForToken() {
  if ($("login").open) return;
  $("login").showModal();
  $("login-form").onsubmit = async (event) => {
    event.preventDefault();
    try {
      await enter($("login-token").value.trim());
      location.reload();
    } catch (error) {
      sayRefused(error.message);
    }
  };
}

async function start() {
  const theme = localStorage.getItem("outlast-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  startTabs();
  startKeys();
  startEvents();
  startPace(bounds);
  startTimeline((row) => {
    showTab("events", false);
    showRow(row);
  }, () => redrawPace());
  startMap((rank) => {
    showTab("rank", false);
    chooseRank(rank);
  });
  setText("foot", `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`);
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => redraw(true));
  document.addEventListener("visibilitychange", () => !document.hidden && redraw());
  await login();
  let about;
  try {
    about = await ask("api/about");
  } catch {
    return askForToken();
  }
  startActions(about.actions, () => job);
  follow(frames, { refused: askForToken, live: showLive });
  setInterval(() => {
    if (document.hidden) return;
    tick();
    refreshRank();
  }, 1000);
  setInterval(() => !document.hidden && redrawTimeline(), 5000);
}

start();
