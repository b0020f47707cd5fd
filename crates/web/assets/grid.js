// Every GPU as a cell on one canvas. Only cells that look different are drawn again; the table beside
// it says the same in words.
import { Brush, CLOSED, FENCED, FREE, GONE, HELD, SHARED, UNKNOWN } from "./cells.js";
import { palette } from "./colours.js";
import { inWords } from "./words.js";

const BYTES = 9;
// Of the 16 that a frame has.
const FRAME_MS = 5;
const healths = ["well", "a note", "hits its job", "fenced", "fenced, needs a reset", "node is drained for it", "node needs a reboot"];

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

/** A cell as it was sent. */
function cellAt(data, at) {
  const job = data[at + 1] | (data[at + 2] << 8) | (data[at + 3] << 16) | (data[at + 4] << 24);
  return { holding: data[at], job: job >>> 0, activity: data[at + 5], power: data[at + 6], temp: data[at + 7], health: data[at + 8] };
}

/** Which bytes of a cell are seen: who has it and how it is, and what the mode shows. */
const seen = { holding: [], activity: [5], power: [6], temp: [7], health: [] };
for (const mode of Object.keys(seen)) seen[mode].push(0, 1, 2, 3, 4, 8);

class Grid {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.signs = JSON.parse(box.dataset.signs);
    this.pen = this.canvas.getContext("2d", { alpha: true });
    this.mode = "holding";
    this.data = new Uint8Array(0);
    this.spots = [];
    this.layout = [];
    this.jobs = {};
    this.at = -1;
    this.dirty = new Set();
    const details = document.getElementById("by-node");
    this.retell = details ? inWords(details, () => this.lines(), (column) => column >= 4 && column <= 9) : () => {};
    this.listen();
  }

  listen() {
    new ResizeObserver(() => this.arrange()).observe(this.box);
    this.canvas.addEventListener("pointermove", (event) => this.point(this.find(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("pointerleave", () => this.point(-1));
    this.canvas.addEventListener("click", () => this.open());
    this.box.addEventListener("keydown", (event) => this.key(event));
    for (const button of document.querySelectorAll("[data-mode]")) {
      button.addEventListener("click", () => this.choose(button));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        const all = [...document.querySelectorAll("[data-mode]")];
        const next = all[(all.indexOf(button) + step + all.length) % all.length];
        this.choose(next);
        next.focus();
        event.preventDefault();
      });
    }
  }

  choose(button) {
    this.mode = button.dataset.mode;
    for (const other of document.querySelectorAll("[data-mode]")) {
      other.setAttribute("aria-checked", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    }
    this.redraw();
  }

  /** Everything, for the first time or because nodes came or went. */
  show({ layout, jobs, cells }) {
    this.layout = layout;
    this.jobs = jobs;
    this.data = bytes(cells);
    this.width = 0;
    this.arrange();
    this.retell();
  }

  /** What has changed since. */
  paint({ jobs, cells }) {
    Object.assign(this.jobs, jobs);
    const sent = bytes(cells), all = this.data, offsets = seen[this.mode];
    for (let at = 0; at < sent.length; at += BYTES + 4) {
      const index = sent[at] | (sent[at + 1] << 8) | (sent[at + 2] << 16) | (sent[at + 3] << 24), to = index * BYTES, from = at + 4;
      if (offsets.some((offset) => all[to + offset] !== sent[from + offset])) this.dirty.add(index);
      for (let i = 0; i < BYTES; i++) all[to + i] = sent[from + i];
    }
    this.later();
    if (this.at >= 0) this.tell();
    this.retell();
  }

  cell(index) {
    return cellAt(this.data, index * BYTES);
  }

  /** Draws what has changed, a part in each frame, so that the page never stands still. */
  later() {
    if (this.asked || !this.dirty.size) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      const until = performance.now() + FRAME_MS;
      for (const index of this.dirty) {
        this.dirty.delete(index);
        this.draw(index);
        if (performance.now() > until) break;
      }
      this.later();
    });
  }

  /** Sites below each other, racks beside each other, nodes as rows of cells. */
  arrange() {
    const width = this.box.clientWidth;
    if (!width || !this.layout.length || width === this.width) return;
    this.width = width;
    // The largest cells with which all can be seen at once.
    const sizes = [40, 34, 30, 26, 22, 19, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7];
    sizes.some((size) => [size >= 12, false].some((named) => {
      this.place(width, size, named);
      return this.height < innerHeight * 0.54;
    }));
    this.buckets = new Map();
    this.spots.forEach((spot, i) => {
      const key = this.bucket(spot.x, spot.y);
      if (!this.buckets.has(key)) this.buckets.set(key, []);
      this.buckets.get(key).push(i);
    });
    this.redraw();
  }

  /** Where everything is, with cells of this size, and with the names of nodes or without. */
  place(width, size, named) {
    const gap = size > 10 ? 2 : 1, step = size + gap, island = size > 10 ? 5 : 3;
    const label = named ? 13 : 0, pad = size > 10 ? 14 : 8;
    Object.assign(this, { size, named });
    this.spots = [];
    this.words = [];
    let y = 4, index = 0;
    const many = this.layout.length > 1 || this.layout[0].name;
    for (const site of this.layout) {
      if (many) { this.words.push({ x: 0, y: y + 12, text: site.name || "elsewhere", strong: true }); y += 20; }
      let x = 0, tallest = 0;
      const nodeHeight = step + label + (named ? 5 : 2);
      const nodeWidths = site.racks.map((rack) => Math.max(named ? 56 : 0, ...rack.nodes.map((node) => node.islands.reduce((sum, n) => sum + n * step, 0) + island * (node.islands.length - 1))) + pad);
      const flat = this.columns(site.racks, nodeWidths, width, pad);
      for (const [r, rack] of site.racks.entries()) {
        const nodeWidth = nodeWidths[r], fits = Math.max(1, Math.floor(width / nodeWidth));
        // A rack is higher than wide, as it is in the room, and never wider than the page.
        const tall = Math.min(fits, Math.max(1, Math.round(Math.sqrt((rack.nodes.length * nodeHeight) / nodeWidth))));
        const columns = Math.min(flat || tall, rack.nodes.length);
        const rackWidth = columns * nodeWidth + pad, head = rack.name ? 18 : 0;
        if (x > 0 && x + rackWidth - pad > width) { x = 0; y += tallest + 10; tallest = 0; }
        if (rack.name) this.words.push({ x, y: y + 11, text: rack.name });
        const rows = Math.ceil(rack.nodes.length / columns);
        rack.nodes.forEach((node, i) => {
          const left = x + Math.floor(i / rows) * nodeWidth, top = y + head + (i % rows) * nodeHeight;
          if (named) this.words.push({ x: left, y: top + 10, text: node.name, small: true });
          let cx = left, gpu = 0;
          node.islands.forEach((n, part) => {
            for (let k = 0; k < n; k++, gpu++, index++) {
              const number = node.gpus ? node.gpus[gpu] : gpu;
              this.spots[index] = { x: cx, y: top + label, node, rack, site, gpu: number, island: part };
              cx += step;
            }
            cx += island;
          });
        });
        tallest = Math.max(tallest, head + rows * nodeHeight);
        x += rackWidth;
      }
      y += tallest + 12;
    }
    this.height = y;
  }

  /** As many columns in each rack as make one row of racks fill the page; 0 if they need several rows. */
  columns(racks, nodeWidths, width, pad) {
    const taken = (columns) => racks.reduce((sum, rack, r) => sum + Math.min(columns, rack.nodes.length) * nodeWidths[r] + pad, -pad);
    const most = Math.max(...racks.map((rack) => rack.nodes.length));
    let columns = 0;
    while (columns < most && taken(columns + 1) <= width) columns += 1;
    return columns;
  }

  bucket(x, y) {
    return (Math.floor(x / 32) << 16) | Math.floor(y / 32);
  }

  redraw() {
    if (!this.width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ink = palette();
    this.brush = new Brush(this.pen, this.ink, this.signs);
    this.dirty.clear();
    for (const word of this.words) {
      this.pen.fillStyle = word.strong ? this.ink.text : this.ink.sub;
      this.pen.font = `${word.small ? 10 : 12}px system-ui, sans-serif`;
      this.pen.fillText(word.text, word.x, word.y);
    }
    for (let i = 0; i < this.spots.length; i++) this.draw(i);
    this.legend();
  }

  draw(index) {
    const { x, y } = this.spots[index], { size, pen } = this;
    this.brush.draw(this.mode, this.cell(index), x, y, size);
    if (index !== this.at) return;
    pen.strokeStyle = this.ink.text;
    pen.lineWidth = 2;
    pen.strokeRect(x, y, size, size);
  }

  find(x, y) {
    if (!this.buckets) return -1;
    const { size } = this;
    for (const [dx, dy] of [[0, 0], [size, 0], [0, size], [size, size]]) {
      for (const index of this.buckets.get(this.bucket(x - dx, y - dy)) ?? []) {
        const spot = this.spots[index];
        if (x >= spot.x - 1 && x <= spot.x + size + 1 && y >= spot.y - 1 && y <= spot.y + size + 1) return index;
      }
    }
    return -1;
  }

  point(index) {
    if (index === this.at || (index < 0 && document.activeElement === this.box)) return;
    const before = this.at;
    this.at = index;
    if (before >= 0 && this.spots[before]) {
      // With the frame around it.
      this.pen.clearRect(this.spots[before].x - 1, this.spots[before].y - 1, this.size + 2, this.size + 2);
      this.draw(before);
    }
    if (index >= 0) this.draw(index);
    this.tell();
  }

  tell() {
    const out = document.getElementById("cell");
    if (this.at < 0) { out.textContent = "Point at a GPU, or move to one with the arrow keys."; return; }
    const spot = this.spots[this.at], cell = this.cell(this.at), job = this.jobs[cell.job];
    const place = [spot.site.name, spot.rack.name].filter(Boolean).join(" / ");
    const words = [`${spot.node.name} GPU ${spot.gpu}`, spot.node.model, place, this.signs[cell.holding].words];
    if (cell.job) words.push(job ? `job ${cell.job} ${job[0]} (${job[1]}, ${job[2]})` : `job ${cell.job}`);
    if (cell.activity !== UNKNOWN) words.push(`activity ${cell.activity * 5} %`);
    if (cell.power !== UNKNOWN) words.push(`power ${cell.power * 5} % of its limit`);
    if (cell.temp !== UNKNOWN) words.push(`${cell.temp} °C`);
    words.push(healths[cell.health] ?? "unwell");
    out.textContent = words.filter(Boolean).join(" · ");
  }

  open() {
    if (this.at < 0) return;
    const cell = this.cell(this.at);
    location.href = cell.job ? `/jobs/${cell.job}` : `/nodes/${encodeURIComponent(this.spots[this.at].node.name)}`;
  }

  key(event) {
    if (event.key === "Enter" && this.at >= 0) return this.open();
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!way || !this.spots.length) return;
    event.preventDefault();
    if (this.at < 0) return this.point(0);
    if (way[0]) return this.point(Math.min(this.spots.length - 1, Math.max(0, this.at + way[0])));
    // The nearest one above or below.
    const from = this.spots[this.at];
    let best = -1, least = Infinity;
    this.spots.forEach((spot, i) => {
      const dy = (spot.y - from.y) * way[1];
      if (dy <= 0) return;
      const far = dy * 4 + Math.abs(spot.x - from.x);
      if (far < least) { least = far; best = i; }
    });
    if (best >= 0) this.point(best);
  }

  /** What values look like in this mode, and the signs of who has a GPU, which are the same in all. */
  legend() {
    const cell = { holding: HELD, job: 0, activity: UNKNOWN, power: UNKNOWN, temp: UNKNOWN, health: 0 };
    const steps = [{ activity: 0, power: 0, temp: 30 }, { activity: 10, power: 10, temp: 60 }, { activity: 20, power: 20, temp: 90 }, {}];
    const scale = (words) => [...words, "not known"].map((said, i) => [{ ...cell, ...steps[i] }, said]);
    const values = {
      holding: [[{ ...cell, job: 1 }, "held: a colour for each job"]],
      activity: scale(["0 %", "50 %", "100 %"]),
      power: scale(["0 %", "50 %", "100 % of the limit"]),
      temp: scale(["30 °C", "60 °C", "90 °C"]),
      health: [[cell, "well"], [{ ...cell, health: 1 }, "a note"], [{ ...cell, health: 3 }, "broken"]],
    }[this.mode];
    const others = [SHARED, FREE, FENCED, CLOSED, GONE].map((holding) => {
      const job = this.mode === "holding" && holding === SHARED ? 2 : 0;
      return [{ ...cell, holding, job, activity: 10, power: 10, temp: 60 }, this.signs[holding].name];
    });
    document.getElementById("legend").replaceChildren(...[...values, ...others].map(([cell, words]) => this.sample(cell, words)));
  }

  sample(cell, words) {
    const item = document.createElement("span"), sign = document.createElement("canvas"), ratio = devicePixelRatio || 1;
    sign.width = sign.height = 14 * ratio;
    sign.style.width = sign.style.height = "14px";
    sign.setAttribute("aria-hidden", "true");
    const pen = sign.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    new Brush(pen, this.ink, this.signs).draw(this.mode, cell, 0, 0, 14);
    item.append(sign, words);
    return item;
  }

  /** The same in words, a row for each node. */
  * lines() {
    const { layout, data } = this;
    let index = 0;
    for (const site of layout) for (const rack of site.racks) for (const node of rack.nodes) {
      const count = node.islands.reduce((sum, n) => sum + n, 0), first = index;
      const cells = Array.from({ length: count }, (_, i) => cellAt(data, (first + i) * BYTES));
      index += count;
      yield [node.name, nodeWords(site, rack, node, cells)];
    }
  }
}

function nodeWords(site, rack, node, cells) {
  const mean = (of) => {
    const known = cells.map((cell) => cell[of]).filter((value) => value !== UNKNOWN);
    return known.length ? `${Math.round((known.reduce((a, b) => a + b, 0) / known.length) * 5)} %` : "–";
  };
  const is = (...list) => cells.filter((cell) => list.includes(cell.holding)).length;
  const temps = cells.map((cell) => cell.temp).filter((temp) => temp !== UNKNOWN);
  const worst = Math.max(0, ...cells.map((cell) => cell.health));
  return [site.name, rack.name, node.name, `${cells.length} ${node.model}`, is(HELD, SHARED), is(FREE), is(FENCED, CLOSED, GONE), mean("activity"), mean("power"), temps.length ? `${Math.max(...temps)} °C` : "–", healths[worst] ?? "unwell"];
}

export function startGrid(box) {
  return box ? new Grid(box) : null;
}
