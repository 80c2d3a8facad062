// Every second of the job in one bar.
import { $, el, percent, setText, span } from "./dom.js";

const COLORS = {
  productive: "r0", redone: "fault", hung: "rx", detecting: "r3", stopping: "r2", forming: "r1", restoring: "rf", starting: "change", checkpoint: "good",
  "data wait": "warn", slowed: "r2", draining: "rd", checking: "rs", provisioning: "faint", queued: "rr", suspended: "rr", unknown: "muted",
};

export function showLedger(frame) {
  const parts = Object.entries(frame.time).filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]);
  const bar = $("ledger-bar");
  sync(bar, parts.length, () => el("div"));
  const legend = $("ledger-legend");
  sync(legend, parts.length, () => el("li", {}, el("span", { class: "swatch" }), el("span"), el("b"), el("span", { class: "muted" })));
  parts.forEach(([state, seconds], at) => {
    const background = `var(--${COLORS[state] ?? "muted"})`;
    const segment = bar.children[at];
    segment.style.flexGrow = Math.max(seconds / frame.wall, 0.0001).toFixed(4);
    segment.style.background = background;
    segment.title = state;
    const [swatch, name, value, share] = legend.children[at].children;
    swatch.style.background = background;
    setText(name, state);
    setText(value, span(seconds));
    setText(share, percent(seconds / frame.wall));
  });
  const mtbf = frame.mtbf ? `; a failure every ${span(frame.mtbf)}` : "";
  setText("ledger-out", `${percent(frame.goodput)} productive of ${span(frame.wall)}${mtbf}${frame.wasted ? `; ${frame.wasted.toFixed(2)} spent on the rest` : ""}`);
}

function sync(node, count, make) {
  while (node.children.length > count) node.lastChild.remove();
  while (node.children.length < count) node.append(make());
}
