// Tables that are sorted, filtered and selected here, and whose rows come and go.
import { localise } from "./live.js";

const tellers = [];
const orders = new Map();
const filtered = new Set();
// Of the 16 that a frame has.
const FRAME_MS = 5;
// Words beside a picture change no more often: nobody could read them.
const CALM_MS = 5000;
const collator = new Intl.Collator(undefined, { numeric: true });

// Rows that nobody sees are changed when they are looked at: a table of a thousand nodes changes all the time, and
// the page pays for every change of it. By row: what was sent, and that as an element where its words were needed.
const later = new Map();
const watcher = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  target.unseen = !isIntersecting;
  if (isIntersecting && later.has(target)) change(target, fresh(target));
}), { rootMargin: "300px" });

export function onPicked(teller) {
  tellers.push(teller);
}

function rowsOf(table) {
  return [...table.tBodies[0].rows];
}

export function picked(id) {
  const table = document.getElementById(id);
  const checked = [...table.tBodies[0].querySelectorAll(".pick input:checked")].map((box) => box.closest("tr"));
  return checked.filter((row) => !row.hidden).map((row) => row.dataset.key);
}

function tell(table) {
  tellers.forEach((teller) => teller(table.id, picked(table.id)));
}

/** A row that was left for later, as it will be. */
function fresh(row) {
  const left = later.get(row);
  left.made ??= parsed(left.html);
  return left.made;
}

/** What a row says, whether or not it shows that yet. */
function latest(row) {
  return later.get(row)?.made ?? row;
}

/** What a cell is sorted by: its number if it has one, else its words. */
function valueOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
  const text = cell.textContent.trim();
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return collator.compare(String(a), String(b));
}

function sort(table) {
  const order = orders.get(table.id);
  if (!order) return;
  const rows = rowsOf(table).map((row) => [valueOf(latest(row), order.column), row]);
  rows.sort(([a], [b]) => compare(a, b) * order.sign);
  arrange(table.tBodies[0], rows.map(([, row]) => row));
}

/** These rows first, in this order. Only those are moved that are elsewhere, and whoever is in one stays there. */
function arrange(body, rows) {
  const active = document.activeElement;
  let next = body.firstElementChild;
  for (const row of rows) {
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
  if (active !== document.activeElement && body.contains(active)) active.focus({ preventScroll: true });
}

/** Words that must all be there; `user:ada` and the like are words of the row too. */
function filter(table) {
  const box = document.querySelector(`[data-filter="${table.id}"]`);
  const words = (box?.value ?? "").toLowerCase().split(/\s+/).map((word) => word.replace(/^\w+:/, "")).filter(Boolean);
  const empty = document.querySelector(`[data-empty="${table.id}"]`);
  if (!words.length && !filtered.has(table.id)) {
    if (empty) empty.hidden = table.tBodies[0].rows.length > 0;
    return;
  }
  if (words.length) filtered.add(table.id);
  else filtered.delete(table.id);
  let shown = 0;
  for (const row of rowsOf(table)) {
    const said = latest(row);
    said.words ??= said.textContent.toLowerCase();
    row.hidden = !words.every((word) => said.words.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  if (empty) empty.hidden = shown > 0;
}

export function startTables() {
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    table.querySelectorAll("[data-sort]").forEach((button) => {
      const head = button.closest("th");
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        orders.set(table.id, { column: head.cellIndex, sign });
        sort(table);
        catchUp(table);
      });
    });
    table.querySelector("[data-all]")?.addEventListener("change", (event) => {
      rowsOf(table).filter((row) => !row.hidden).forEach((row) => { row.querySelector(".pick input").checked = event.target.checked; });
      tell(table);
    });
    table.addEventListener("change", () => tell(table));
    document.querySelector(`[data-filter="${table.id}"]`)?.addEventListener("input", () => { filter(table); tell(table); catchUp(table); });
    rowsOf(table).forEach(ready);
    filter(table);
  }
}

function ready(row) {
  row.tabIndex = -1;
  watcher.observe(row);
}

function added(body, row) {
  ready(row);
  return body.appendChild(row);
}

function gone(row) {
  watcher.unobserve(row);
  later.delete(row);
  row.remove();
}

const inside = (row) => [...row.querySelectorAll("a, button, input")];

/** A new row in place of an old one, with whoever is in it. */
function change(old, row) {
  const check = old.querySelector(".pick input"), had = old.contains(document.activeElement);
  const at = had ? inside(old).indexOf(document.activeElement) : -1;
  if (check?.checked) row.querySelector(".pick input").checked = true;
  row.hidden = old.hidden;
  row.unseen = old.unseen;
  old.replaceWith(row);
  gone(old);
  ready(row);
  if (had) (inside(row)[at] ?? row).focus({ preventScroll: true });
  return row;
}

const catching = new Set();

/** Reads what was left for later, a part in each frame: the order of rows, or which are shown, depends on it. */
function catchUp(table) {
  if (catching.has(table)) return;
  catching.add(table);
  const step = () => {
    const until = performance.now() + FRAME_MS;
    for (const [row, left] of later) {
      if (left.made || !table.contains(row)) continue;
      fresh(row);
      if (performance.now() > until) { requestAnimationFrame(step); return; }
    }
    catching.delete(table);
    settle(table);
  };
  requestAnimationFrame(step);
}

/** After rows have changed. */
function settle(table) {
  sort(table);
  filter(table);
  tell(table);
}

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const row = template.content.firstElementChild;
  localise(row);
  return row;
}

/** Rows that are new, changed, gone or elsewhere. */
export function applyRows({ table: id, set, gone: left, order }) {
  const table = document.getElementById(id);
  if (!table) return;
  const body = table.tBodies[0];
  const known = new Map(rowsOf(table).map((row) => [row.dataset.key, row]));
  for (const key of left) {
    if (known.has(key)) gone(known.get(key));
    known.delete(key);
  }
  for (const [key, html] of set) {
    const old = known.get(key);
    if (old?.unseen) later.set(old, { html });
    else if (old) known.set(key, change(old, parsed(html)));
    else known.set(key, added(body, parsed(html)));
  }
  if (order) {
    const wanted = new Set(order);
    known.forEach((row, key) => { if (!wanted.has(key)) { gone(row); known.delete(key); } });
    if (!orders.has(id)) arrange(body, order.map((key) => known.get(key)).filter(Boolean));
  }
  if (orders.has(id) || filtered.has(id)) catchUp(table);
  else settle(table);
}

/** One row of words: what is the same as before is left as it is. */
function say(row, values, isNumber) {
  const said = row.said ?? [];
  values.forEach((value, i) => {
    const cell = row.cells[i] ?? row.insertCell();
    if (said[i] === value) return;
    if (said[i] === undefined) {
      cell.setAttribute("role", "cell");
      if (isNumber(i)) cell.className = "n";
    }
    cell.textContent = value;
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
    say(row, values, isNumber);
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

function current() {
  return document.activeElement?.closest("tbody tr[data-key]");
}

export function moveRow(by) {
  const table = document.querySelector("table[data-sortable]");
  if (!table) return;
  const rows = rowsOf(table).filter((row) => !row.hidden);
  const at = rows.indexOf(current());
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

export function pickRow() {
  const check = current()?.querySelector(".pick input");
  if (check && check.offsetParent) check.click();
}

export function openRow(row) {
  if (row.dataset.href) location.href = row.dataset.href;
}
