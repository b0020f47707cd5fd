// Tables that are sorted, filtered and selected here, and whose rows come and go.
import { localise } from "./live.js";

const tellers = [];
const orders = new Map();

export function onPicked(teller) {
  tellers.push(teller);
}

function rowsOf(table) {
  return [...table.tBodies[0].rows];
}

export function picked(id) {
  const table = document.getElementById(id);
  return rowsOf(table).filter((row) => !row.hidden && row.querySelector(".pick input")?.checked).map((row) => row.dataset.key);
}

function tell(table) {
  tellers.forEach((teller) => teller(table.id, picked(table.id)));
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
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sort(table) {
  const order = orders.get(table.id);
  if (!order) return;
  const rows = rowsOf(table).map((row) => [valueOf(row, order.column), row]);
  rows.sort(([a], [b]) => compare(a, b) * order.sign);
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

/** Words that must all be there; `user:ada` and the like are words of the row too. */
function filter(table) {
  const box = document.querySelector(`[data-filter="${table.id}"]`);
  const words = (box?.value ?? "").toLowerCase().split(/\s+/).map((word) => word.replace(/^\w+:/, "")).filter(Boolean);
  let shown = 0;
  for (const row of rowsOf(table)) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  const empty = document.querySelector(`[data-empty="${table.id}"]`);
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
      });
    });
    table.querySelector("[data-all]")?.addEventListener("change", (event) => {
      rowsOf(table).filter((row) => !row.hidden).forEach((row) => { row.querySelector(".pick input").checked = event.target.checked; });
      tell(table);
    });
    table.addEventListener("change", () => tell(table));
    document.querySelector(`[data-filter="${table.id}"]`)?.addEventListener("input", () => { filter(table); tell(table); });
    rowsOf(table).forEach(ready);
    filter(table);
  }
}

function ready(row) {
  row.tabIndex = -1;
}

function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const row = template.content.firstElementChild;
  localise(row);
  ready(row);
  return row;
}

/** Rows that are new, changed, gone or elsewhere. */
export function applyRows({ table: id, set, gone, order }) {
  const table = document.getElementById(id);
  if (!table) return;
  const body = table.tBodies[0];
  const known = new Map(rowsOf(table).map((row) => [row.dataset.key, row]));
  for (const key of gone) {
    known.get(key)?.remove();
    known.delete(key);
  }
  for (const [key, html] of set) {
    const row = made(html), old = known.get(key);
    if (old) {
      const check = old.querySelector(".pick input"), had = old.contains(document.activeElement);
      if (check?.checked) row.querySelector(".pick input").checked = true;
      old.replaceWith(row);
      if (had) row.focus();
    } else {
      body.append(row);
    }
    known.set(key, row);
  }
  if (order) {
    const wanted = new Set(order);
    known.forEach((row, key) => { if (!wanted.has(key)) { row.remove(); known.delete(key); } });
    const now = rowsOf(table).map((row) => row.dataset.key);
    if (!orders.has(id) && order.some((key, i) => now[i] !== key)) body.append(...order.map((key) => known.get(key)).filter(Boolean));
  }
  sort(table);
  filter(table);
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
