// Drain, restart, stop: only where the server allows it, and only after the job's name was typed.
import { $, ask, el, setText } from "./dom.js";
import { nodeList } from "./rankmap.js";

export function startActions(actions, jobName) {
  if (!actions.length) return;
  $("tab-act").hidden = false;
  $("act-what").append(...actions.map((what) => el("option", { value: what }, what)));
  const check = () => {
    $("act-subject").disabled = $("act-what").value !== "drain";
    $("act-go").disabled = $("act-confirm").value !== jobName() || !jobName();
  };
  $("act-form").addEventListener("input", check);
  $("act-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const what = $("act-what").value;
    const body = { what, confirm: $("act-confirm").value, subject: what === "drain" ? $("act-subject").value : "" };
    $("act-confirm").value = "";
    check();
    try {
      const answer = await ask("api/act", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      setText("act-out", `${answer.done ? "Done" : "Not done"}: ${answer.text}`);
    } catch (error) {
      setText("act-out", `Not done: ${error.message}`);
    }
  });
  $("tab-act").addEventListener("click", () => {
    const { names, ids } = nodeList();
    const before = $("act-subject").value;
    $("act-subject").replaceChildren(...ids.map((id, at) => el("option", { value: id }, names[at])));
    if (before) $("act-subject").value = before;
    check();
  });
  check();
}
