// Tables that are sorted, filtered and selected here, and whose rows come and go.
import { localise } from "./live.js";

const tellers = [];
const orders = new Map();
const filtered = new Set();

// Rows that nobody sees are changed when they are looked at: a table of a thousand nodes changes all the time.
const later = new Map();
const watcher = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  target.unseen = !isIntersecting;
  if (isIntersecting && later.has(target)) change(target, later.get(target));
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
  const empty = document.querySelector(`[data-empty="${table.id}"]`);
  if (!words.length && !filtered.has(table.id)) {
    if (empty) empty.hidden = table.tBodies[0].rows.length > 0;
    return;
  }
  if (words.length) filtered.add(table.id);
  else filtered.delete(table.id);
  let shown = 0;
  for (const row of rowsOf(table)) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
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
        catchUp(table);
        sort(table);
      });
    });
    table.querySelector("[data-all]")?.addEventListener("change", (event) => {
      rowsOf(table).filter((row) => !row.hidden).forEach((row) => { row.querySelector(".pick input").checked = event.target.checked; });
      tell(table);
    });
    table.addEventListener("change", () => tell(table));
    document.querySelector(`[data-filter="${table.id}"]`)?.addEventListener("input", () => { catchUp(table); filter(table); tell(table); });
    rowsOf(table).forEach(ready);
    filter(table);
  }
}

function ready(row) {
  row.tabIndex = -1;
  watcher.observe(row);
}

function gone(row) {
  watcher.unobserve(row);
  later.delete(row);
  row.remove();
}

/** A new row in place of an old one. */
function change(old, html) {
  const row = made(html), check = old.querySelector(".pick input"), had = old.contains(document.activeElement);
  if (check?.checked) row.querySelector(".pick input").checked = true;
  row.hidden = old.hidden;
  old.replaceWith(row);
  gone(old);
  if (had) row.focus();
  return row;
}

/** Everything that was left for later: the order of rows, or which are shown, depends on what they say. */
function catchUp(table) {
  for (const row of rowsOf(table)) if (later.has(row)) change(row, later.get(row));
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
export function applyRows({ table: id, set, gone: left, order }) {
  const table = document.getElementById(id);
  if (!table) return;
  const body = table.tBodies[0];
  const known = new Map(rowsOf(table).map((row) => [row.dataset.key, row]));
  for (const key of left) {
    if (known.has(key)) gone(known.get(key));
    known.delete(key);
  }
  const all = orders.has(id) || filtered.has(id);
  for (const [key, html] of set) {
    const old = known.get(key);
    if (old?.unseen && !all) later.set(old, html);
    else if (old) known.set(key, change(old, html));
    else known.set(key, body.appendChild(made(html)));
  }
  if (order) {
    const wanted = new Set(order);
    known.forEach((row, key) => { if (!wanted.has(key)) { gone(row); known.delete(key); } });
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
