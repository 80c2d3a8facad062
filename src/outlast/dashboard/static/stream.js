// The live stream. The browser resumes a broken one by itself; one that was refused is opened anew, from the last id on.

const FRAMES = ["now", "nodes", "ranks", "contact", "ledger", "pace", "story"];
const SILENT = 40_000; // ms: the server is heard every 15 s, so this one is dead

export function follow(on, { refused, live }) {
  let source = null;
  let last = "";
  let heard = Date.now();
  let wait = 1000;

  function open() {
    source?.close();
    source = new EventSource(`api/stream${last ? `?after=${encodeURIComponent(last)}` : ""}`);
    source.addEventListener("open", () => {
      heard = Date.now();
      wait = 1000;
      live(true);
    });
    source.addEventListener("error", broken);
    for (const name of FRAMES) {
      source.addEventListener(name, (event) => {
        heard = Date.now();
        if (event.lastEventId) last = event.lastEventId;
        on[name]?.(JSON.parse(event.data));
      });
    }
  }

  async function broken() {
    live(false);
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    if ((await status()) === 401) return refused();
    setTimeout(open, wait);
    wait = Math.min(wait * 2, 15_000);
  }

  async function status() {
    try {
      return (await fetch("api/about", { cache: "no-store" })).status;
    } catch {
      return 0;
    }
  }

  // A machine that slept, or a proxy that swallowed the end: nobody says so. Heartbeats are comments, which scripts do
  // not see; so what is silent for long is asked for anew, at the cost of one request.
  setInterval(() => {
    if (Date.now() - heard > SILENT && source.readyState === EventSource.OPEN && !document.hidden) {
      heard = Date.now();
      open();
    }
  }, 5000);
  open();
  return open;
}
