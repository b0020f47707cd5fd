// Rows of tables, changed in place. A row keeps its element for as long as it is there; of its cells only those are
// touched that say something else.
import { localise, look, onSight } from "./live.js";
import { become, morph, parsed, say } from "./morph.js";

const tables = new WeakMap();

// Rows that are laid out and drawn together, if they are in sight.
const GROUP = 16;

// Rows that nobody sees are changed when they come into sight, or when it matters what they say: by row, and there by the
// place of the cell, what was sent last.
const later = new Map();

/** Whose groups of rows come and go as they are scrolled. */
const isLong = (table) => table.matches(".list");

export function rowsOf(table) {
  return [...table.tBodies].flatMap((group) => [...group.rows]);
}

/** Rows of a table by their key. */
export function keyed(table) {
  if (!tables.has(table)) {
    tables.set(table, new Map(rowsOf(table).map((row) => [row.dataset.key, row])));
    if (isLong(table)) look(table.tBodies);
  }
  return tables.get(table);
}

/** What a cell says now: words in the most cases, else markup. */
function put(cell, html, value) {
  if (value !== undefined) cell.dataset.v = value;
  if (!/[<&]/.test(html)) return say(cell, html);
  const wanted = parsed(html);
  localise(wanted);
  morph(cell, wanted);
}

function remember(row, cells) {
  let left = later.get(row);
  if (!left) later.set(row, left = []);
  for (const cell of cells) left[cell[0]] = cell;
}

/** Changes what was left for later. */
export function catchUp(row) {
  const left = later.get(row);
  if (!left) return;
  later.delete(row);
  left.forEach(([at, html, value]) => put(row.cells[at], html, value));
}

onSight((group) => [...group.rows].forEach(catchUp));

function whole(html) {
  const made = parsed(html);
  localise(made);
  const row = made.firstElementChild;
  row.tabIndex = -1;
  return row;
}

/**
 * Rows that are new or another, changed cells of others, rows that are gone. Returns those that say something new, and
 * whether there are others than before. New ones are in no place yet.
 */
export function change(table, { set, cells, gone, order }) {
  const known = keyed(table), changed = [];
  const remove = (key) => {
    const row = known.get(key);
    row?.remove();
    later.delete(row);
    known.delete(key);
  };
  gone.forEach(remove);
  for (const [key, html] of set) {
    const old = known.get(key), row = whole(html);
    later.delete(old);
    if (old) become(old, row);
    else known.set(key, row);
    changed.push(old ?? row);
  }
  for (const [key, list] of cells ?? []) {
    const row = known.get(key);
    if (!row) continue;
    if (row.parentNode?.away) remember(row, list);
    else for (const [at, html, value] of list) put(row.cells[at], html, value);
    changed.push(row);
  }
  if (order && order.length < known.size) {
    const wanted = new Set(order);
    [...known.keys()].filter((key) => !wanted.has(key)).forEach(remove);
  }
  return changed;
}

/** The longest list of places that are in order already. */
function staying(places) {
  const ends = [], before = [];
  places.forEach((place, i) => {
    if (place === undefined) return;
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[ends[middle]] < place) low = middle + 1;
      else high = middle;
    }
    before[i] = ends[low - 1];
    ends[low] = i;
  });
  const stay = new Set();
  for (let i = ends.at(-1); i !== undefined; i = before[i]) stay.add(i);
  return stay;
}

/** All rows in this order. As few as can be are moved, and whoever is in one stays there. */
export function arrange(table, rows) {
  const active = document.activeElement, places = new Map(rowsOf(table).map((row, i) => [row, i]));
  const stay = staying(rows.map((row) => places.get(row)));
  let next = null;
  for (let i = rows.length - 1; i >= 0; i--) {
    const row = rows[i], group = next ? next.parentNode : [...table.tBodies].at(-1);
    if (!stay.has(i)) {
      if (row.isConnected && group.moveBefore) group.moveBefore(row, next);
      else group.insertBefore(row, next);
    }
    next = row;
  }
  if (isLong(table)) [...table.tBodies].forEach((group) => balance(table, group));
  if (active !== document.activeElement && table.contains(active)) active.focus({ preventScroll: true });
}

/** Groups stay small, and one stays. */
function balance(table, group) {
  if (!group.rows.length && table.tBodies.length > 1) return group.remove();
  while (group.rows.length > 2 * GROUP) {
    const other = group.cloneNode(false), last = [...group.rows].slice(-GROUP);
    group.after(other);
    last.forEach((row) => (other.moveBefore ? other.moveBefore(row, null) : other.append(row)));
    look([other]);
  }
}
