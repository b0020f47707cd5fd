// Tables that are sorted, filtered and selected here, and whose rows come and go.
import { arrange, catchUp, change, keyed, rowsOf } from "./rows.js";
import { CALM_MS } from "./words.js";

const tellers = [];
const orders = new Map();
const filtered = new Set();
// By table: the rows whose box is checked, and what was last told of them.
const chosen = new Map();
const told = new Map();
// How high a row is that has one line.
const ROW = 31;
const collator = new Intl.Collator(undefined, { numeric: true });

export function onPicked(teller) {
  tellers.push(teller);
}

/** Keys of the rows that are selected and shown. */
export function picked(id) {
  const table = document.getElementById(id), known = keyed(table), rows = chosen.get(table) ?? new Set();
  rows.forEach((row) => { if (known.get(row.dataset.key) !== row) rows.delete(row); });
  return [...rows].filter((row) => !row.hidden).map((row) => row.dataset.key);
}

function choose(table, row) {
  const rows = chosen.get(table);
  // Not every list has boxes.
  if (row.querySelector(".pick input")?.checked) rows.add(row);
  else rows.delete(row);
}

function tell(table) {
  const keys = picked(table.id), words = JSON.stringify(keys);
  if (told.get(table.id) === words) return;
  told.set(table.id, words);
  tellers.forEach((teller) => teller(table.id, keys));
}

/** What a cell is sorted by: its number if it has one, else its words. */
function valueOf(row, column) {
  catchUp(row);
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
  const order = orders.get(table.id), { column, sign } = order;
  const rows = [...keyed(table).values()].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => compare(a, b) * sign);
  order.last = performance.now();
  arrange(table, rows.map(([, row]) => row));
}

/** Values that change all the time would move rows from under the reader: new ones come at the end until it is time. */
function sortAgain(table) {
  const order = orders.get(table.id), rest = order.last + CALM_MS - performance.now();
  if (rest <= 0) return sort(table);
  [...table.tBodies].at(-1).append(...[...keyed(table).values()].filter((row) => !row.isConnected));
  order.timer ??= setTimeout(() => { order.timer = null; if (orders.get(table.id) === order) sort(table); }, rest);
}

function wordsOf(row) {
  catchUp(row);
  return (row.words ??= row.textContent.toLowerCase());
}

/** A group out of sight takes the room that it had: not while some of its rows are left out. */
function fit(group, some) {
  const shown = some ? [...group.rows].filter((row) => !row.hidden).length : 0;
  group.hidden = some && !shown;
  group.style.containIntrinsicBlockSize = some ? `${shown * ROW}px` : "";
}

/** Words that must all be there; `user:ada` and the like are words of the row too. */
function filter(table, rows) {
  const box = document.querySelector(`[data-filter="${table.id}"]`);
  const words = (box?.value ?? "").toLowerCase().split(/\s+/).map((word) => word.replace(/^\w+:/, "")).filter(Boolean);
  const some = words.length > 0, again = some || filtered.has(table.id);
  if (again) for (const row of rows) row.hidden = !words.every((word) => wordsOf(row).includes(word));
  if (some) filtered.add(table.id);
  else filtered.delete(table.id);
  if (again) for (const group of table.tBodies) fit(group, some);
  const empty = document.querySelector(`[data-empty="${table.id}"]`);
  if (empty) empty.hidden = Boolean(table.querySelector("tbody tr:not([hidden])"));
}

function startSorting(table, button) {
  const head = button.closest("th");
  button.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    orders.set(table.id, { column: head.cellIndex, sign });
    sort(table);
  });
}

export function startTables() {
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    table.querySelectorAll("[data-sort]").forEach((button) => startSorting(table, button));
    chosen.set(table, new Set());
    table.addEventListener("change", ({ target }) => {
      const all = target.matches("[data-all]");
      for (const row of all ? rowsOf(table).filter((row) => !row.hidden) : [target.closest("tr")]) {
        if (all) row.querySelector(".pick input").checked = target.checked;
        choose(table, row);
      }
      tell(table);
    });
    document.querySelector(`[data-filter="${table.id}"]`)?.addEventListener("input", () => { filter(table, rowsOf(table)); tell(table); });
    rowsOf(table).forEach((row) => { row.tabIndex = -1; choose(table, row); });
    filter(table, rowsOf(table));
  }
}

/** Rows that are new, changed, gone or elsewhere. */
export function applyRows(sent) {
  const table = document.getElementById(sent.table);
  if (!table) return;
  const changed = change(table, sent), known = keyed(table);
  changed.forEach((row) => { row.words = undefined; });
  if (orders.has(table.id)) sortAgain(table);
  else if (sent.order) arrange(table, sent.order.map((key) => known.get(key)).filter(Boolean));
  filter(table, changed);
  tell(table);
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
