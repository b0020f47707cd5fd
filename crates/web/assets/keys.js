// Keys. None of them while somebody writes.
import { moveRow, openRow, pickRow } from "./table.js";
import { press } from "./act.js";

// The page that a key goes to after `g`, as the navigation has it.
function pageOf(key) {
  return document.querySelector(`nav a[data-go="${CSS.escape(key)}"]`)?.href;
}

function writes(target) {
  return target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

export function startKeys({ does, grid }) {
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && writes(event.target)) return event.target.blur();
    if (writes(event.target) || document.querySelector("dialog[open]")) return;
    const page = event.timeStamp - going < 1500 && pageOf(event.key);
    if (page) {
      going = 0;
      location.href = page;
      return;
    }
    going = 0;
    const acts = {
      g: () => { going = event.timeStamp; },
      "?": does.help,
      d: does.theme,
      "/": () => document.querySelector("#filter, #log-search")?.focus(),
      j: () => moveRow(1),
      k: () => moveRow(-1),
      x: pickRow,
      c: () => press("cancel"),
      h: () => press("hold"),
      r: () => press("release"),
    };
    const mode = document.querySelector(`[data-mode][data-key="${CSS.escape(event.key)}"]`);
    if (mode && grid) {
      mode.click();
    } else if (event.key === "Enter" && event.target.matches("tr")) {
      openRow(event.target);
    } else if (acts[event.key]) {
      acts[event.key]();
      event.preventDefault();
    }
  });
}
