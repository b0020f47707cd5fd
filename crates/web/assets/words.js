// Tables that say what a picture shows.
import { say } from "./morph.js";

// Of the 16 that a frame has.
const FRAME_MS = 5;
// Words beside a picture change no more often: nobody could read them.
export const CALM_MS = 5000;

/** One row of words: what is the same as before is left as it is. */
function tell(row, values, isNumber) {
  const said = row.said ?? [];
  values.forEach((value, i) => {
    const cell = row.cells[i] ?? row.insertCell();
    if (said[i] === value) return;
    if (said[i] === undefined) {
      cell.setAttribute("role", "cell");
      if (isNumber(i)) cell.className = "n";
    }
    say(cell, String(value));
  });
  row.said = values;
}

/**
 * A table that says what a picture shows: filled while it is open, a part in each frame, and never under somebody
 * who is in it. `lines` gives each row's key and values. Returns what to call when they have changed.
 */
export function inWords(details, lines, isNumber = () => false) {
  const box = details.querySelector(".scroll"), body = details.querySelector("tbody"), known = new Map();
  let last = -Infinity, timer = 0, busy = false, missed = false;
  const isRead = () => box.contains(document.activeElement);

  function put([key, values], next) {
    const row = known.get(key) ?? document.createElement("tr");
    if (!known.has(key)) row.setAttribute("role", "row");
    known.set(key, row);
    tell(row, values, isNumber);
    if (row === next) return next.nextElementSibling;
    body.insertBefore(row, next);
    return next;
  }

  function finish(seen) {
    for (const [key, row] of known) if (!seen.has(key)) { row.remove(); known.delete(key); }
    busy = false;
    // The first words need not wait.
    if (!seen.size) last = -Infinity;
    if (missed) changed();
  }

  function fill() {
    timer = 0;
    missed = false;
    // Asked again when the reader leaves it.
    if (!details.open || isRead()) return;
    last = performance.now();
    busy = true;
    const all = lines(), seen = new Set();
    let next = body.firstElementChild;
    const step = () => {
      const until = performance.now() + FRAME_MS;
      for (let line = all.next(); !line.done; line = all.next()) {
        seen.add(line.value[0]);
        next = put(line.value, next);
        if (performance.now() > until) { requestAnimationFrame(step); return; }
      }
      finish(seen);
    };
    step();
  }

  function changed() {
    if (busy) missed = true;
    else if (details.open && !timer) timer = setTimeout(fill, Math.max(0, last + CALM_MS - performance.now()));
  }

  details.addEventListener("toggle", () => { clearTimeout(timer); timer = 0; last = -Infinity; changed(); });
  box.addEventListener("focusout", changed);
  return changed;
}
