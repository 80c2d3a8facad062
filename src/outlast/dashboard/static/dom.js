// The few ways in which this page touches the document. Text is only ever set as text.

export const $ = (id) => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function setText(node, text) {
  const target = typeof node === "string" ? $(node) : node;
  if (target.textContent !== text) target.textContent = text;
}

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas in device pixels, drawn again when its size, the colours or its data change; never while nobody sees it.
export function canvas(node, draw) {
  let asked = false;
  const paint = () => {
    asked = false;
    const { clientWidth: width, clientHeight: height } = node;
    const ratio = window.devicePixelRatio || 1;
    if (!width) return;
    if (node.width !== Math.round(width * ratio) || node.height !== Math.round(height * ratio)) {
      node.width = Math.round(width * ratio);
      node.height = Math.round(height * ratio);
    }
    const context = node.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context, width, height);
  };
  const again = () => {
    if (!asked) requestAnimationFrame(paint);
    asked = true;
  };
  new ResizeObserver(again).observe(node);
  return again;
}

export function radios(container, options, chosen, choose) {
  const buttons = options.map(([value, label]) => {
    const button = el("button", { type: "button", role: "radio", "data-value": value }, label);
    button.addEventListener("click", () => select(value));
    return button;
  });
  function select(value, quiet = false) {
    for (const button of buttons) {
      const on = button.dataset.value === value;
      button.setAttribute("aria-checked", on);
      button.tabIndex = on ? 0 : -1;
    }
    if (!quiet) choose(value);
  }
  container.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[(at + by + buttons.length) % buttons.length];
    next.focus();
    select(next.dataset.value);
  });
  container.append(...buttons);
  select(chosen, true);
  return select;
}

// The job's clock, which events and snapshots are timed by: this machine's may be off.
let ahead = 0;
export const setClock = (time) => (ahead = time - Date.now() / 1000);
export const nowSeconds = () => Date.now() / 1000 + ahead;

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { weekday: "short", year: "numeric", month: "short", day: "numeric" });
const whole = new Intl.NumberFormat("en");
export const at = (time) => clock.format(time * 1000);
export const dayOf = (time) => day.format(time * 1000);
export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const percent = (share) => `${(share * 100).toFixed(share >= 0.9995 || share < 0.1 ? 2 : 1)} %`;

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  if (!response.ok) throw new Error(await response.text());
  return response.status === 204 ? null : response.json();
}
