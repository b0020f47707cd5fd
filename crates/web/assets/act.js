// Changes: asked for once more where they can't be taken back, made by the API, and reported.
import { picked, onPicked } from "./table.js";

const { csrf } = document.body.dataset;

export function toast(words, bad) {
  const box = document.createElement("p");
  box.className = bad ? "toast bad" : "toast";
  box.textContent = words;
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), bad ? 12000 : 5000);
}

/** A question with a way out. Resolves with what was written, or null. */
function ask(question, yes, field) {
  const dialog = document.createElement("dialog");
  const form = document.createElement("form");
  form.method = "dialog";
  const words = document.createElement("p");
  words.id = "question";
  words.textContent = question;
  dialog.setAttribute("aria-labelledby", "question");
  form.append(words);
  const input = document.createElement("input");
  if (field) {
    input.type = "text";
    input.setAttribute("aria-label", field);
    input.placeholder = field;
    form.append(input);
  }
  const leave = document.createElement("button"), go = document.createElement("button");
  // Enter in the field presses the first button that submits.
  leave.type = "button";
  leave.value = "no";
  leave.textContent = "Leave it";
  leave.addEventListener("click", () => dialog.close("no"));
  go.value = "yes";
  go.textContent = yes;
  go.className = "danger";
  form.append(leave, go);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? input.value : null);
    });
  });
}

/** What went wrong, in words; null if nothing did. */
async function send(of, id, verb, body) {
  const asked = fetch(`/api/v1/${of}/${encodeURIComponent(id)}/${verb}`, {
    method: "POST",
    headers: { "X-Tutti-CSRF": csrf, ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body ? JSON.stringify(body) : undefined,
  });
  const answer = await asked.catch(() => null);
  if (!answer) return "the controller does not answer";
  if (answer.ok) return null;
  const problem = await answer.json().catch(() => ({ message: answer.statusText }));
  return problem.hint ? `${problem.message}: ${problem.hint}` : problem.message;
}

const done = {
  cancel: "told to stop", hold: "held", release: "released", priority: "moved in line", suspend: "told to leave its GPUs",
  resume: "told to go on", drain: "drained",
};

async function change(of, ids, verb, value) {
  const what = ids.length === 1 ? `${of === "nodes" ? "node" : "job"} ${ids[0]}` : `${ids.length} ${of}`;
  let body;
  if (verb === "priority") body = { priority: value };
  if (verb === "cancel" && (await ask(`Cancel ${what}?`, "Cancel")) === null) return;
  if (verb === "drain") {
    const reason = await ask(`Drain ${what}? Nothing new starts there.`, "Drain", "Why");
    if (reason === null) return;
    body = { reason, evict: false };
  }
  const answers = await Promise.all(ids.map((id) => send(of, id, verb, body)));
  const bad = answers.filter((answer) => answer !== null);
  if (bad.length < ids.length) toast(`${ids.length - bad.length} of ${ids.length} ${done[verb]}`);
  [...new Set(bad)].forEach((words) => toast(words, true));
}

function idsOf(group) {
  return group.dataset.one ? [group.dataset.one] : picked(group.dataset.act);
}

function run(control, verb, value) {
  const group = control.closest(".act");
  const ids = idsOf(group);
  if (ids.length) change(group.dataset.of || "jobs", ids, verb, value);
}

/** As if the button for this were pressed, if there is one in sight. */
export function press(verb) {
  const buttons = [...document.querySelectorAll(`.act button[data-verb="${verb}"]:not([disabled])`)];
  buttons.find((button) => button.offsetParent)?.click();
}

export function startActions() {
  for (const button of document.querySelectorAll(".act button[data-verb]")) {
    button.addEventListener("click", () => run(button, button.dataset.verb));
  }
  for (const select of document.querySelectorAll(".act select[data-verb]")) {
    select.addEventListener("change", () => {
      if (select.value) run(select, select.dataset.verb, select.value);
      select.value = "";
    });
  }
  onPicked((table, ids) => {
    const group = document.querySelector(`[data-act="${table}"]`);
    if (!group) return;
    group.querySelectorAll("button, select").forEach((control) => { control.disabled = !ids.length; });
    group.querySelector("[data-picked]").textContent = ids.length ? `${ids.length} selected` : "none selected";
  });
}
