// Who had which GPU when, on a canvas that can be moved and zoomed. Only the nodes in sight are drawn:
// the canvas is as high as the window onto them and stays in it while they scroll.
import { palette } from "./colours.js";
import { now, pointWords } from "./live.js";

const LEFT = 92, TOP = 22;
// In the order of their numbers; what they are called and their colours are in the legend.
const marks = [...document.querySelectorAll("#ends > span")];
const ends = marks.map((mark) => mark.textContent);
const steps = [60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400];

class Gantt {
  constructor(box) {
    this.box = box;
    this.tall = box.querySelector(".tall");
    this.canvas = box.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.out = document.getElementById("bar");
    // For each node its bars as they were sent, by their key; and, of those that were in sight since, as they are drawn.
    this.bars = [];
    this.lanes = new Map();
    this.inSight = [0, -1];
    this.hits = [];
    this.span = null;
    this.end = null;
    new ResizeObserver(() => this.later()).observe(box);
    for (const button of document.querySelectorAll("[data-hours]")) button.addEventListener("click", () => { this.end = null; this.span = button.dataset.hours * 3600; this.later(); });
    for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => this.zoom(button.dataset.zoom === "in" ? 0.5 : 2));
    this.listen();
  }

  listen() {
    const { canvas, box } = this;
    box.addEventListener("scroll", () => this.later(), { passive: true });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, (event.offsetX - LEFT) / this.wide());
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { this.grabbed = { x: event.clientX, end: this.until(), moved: false }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (this.grabbed) {
        const by = ((event.clientX - this.grabbed.x) / this.wide()) * this.span;
        if (Math.abs(event.clientX - this.grabbed.x) > 3) this.grabbed.moved = true;
        this.move(this.grabbed.end - by);
      } else this.tell(this.find(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointerup", (event) => {
      const still = this.grabbed && !this.grabbed.moved, found = this.find(event.offsetX, event.offsetY);
      this.grabbed = null;
      if (still && found) location.href = `/jobs/${found.job[0]}`;
    });
    canvas.addEventListener("pointercancel", () => { this.grabbed = null; });
    box.addEventListener("keydown", (event) => {
      const acts = {
        ArrowLeft: () => this.move(this.until() - this.span / 5), ArrowRight: () => this.move(this.until() + this.span / 5),
        "+": () => this.zoom(0.5), "-": () => this.zoom(2),
      };
      if (!acts[event.key]) return;
      acts[event.key]();
      event.preventDefault();
      event.stopPropagation();
    });
  }

  wide() { return Math.max(50, this.box.clientWidth - LEFT - 4); }
  until() { return this.end ?? now() / 1000; }

  move(end) {
    const newest = now() / 1000;
    this.end = end >= newest ? null : Math.max(end, this.frame ? this.frame.from : 0);
    this.later();
  }

  zoom(by, at = 1) {
    if (!this.span) return;
    const until = this.until(), from = until - this.span, point = from + this.span * at;
    this.span = Math.min(31 * 86400, Math.max(60, this.span * by));
    this.move(point + this.span * (1 - at));
  }

  /** Everything, for the first time or because nodes came or went. */
  show({ from, nodes, jobs, bars, more }) {
    this.frame = { from, nodes };
    this.more = more;
    this.jobs = jobs;
    this.bars = nodes.map(() => new Map());
    this.lanes.clear();
    bars.forEach((bar) => this.put(bar));
    this.later();
  }

  /** What has changed since. Nothing is drawn for what is out of sight, nor for less than a pixel of time. */
  change({ from, jobs, set, gone, more }) {
    this.frame.from = from;
    this.more = more;
    Object.assign(this.jobs, jobs);
    const [first, last] = this.inSight, isSeen = ([, node]) => node >= first && node <= last;
    for (const bar of gone) {
      this.bars[bar[1]]?.delete(keyOf(bar));
      this.lanes.delete(bar[1]);
    }
    set.forEach((bar) => this.put(bar));
    const moved = this.end === null && now() / 1000 - this.drawn > this.span / this.wide();
    if (moved || gone.some(isSeen) || set.some(isSeen)) this.later();
  }

  put(bar) {
    this.bars[bar[1]]?.set(keyOf(bar), bar);
    this.lanes.delete(bar[1]);
  }

  /** In the colours of the other light. */
  redraw() {
    this.ink = null;
    this.later();
  }

  /** Once for each frame at most, however much has happened. */
  later() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      if (!this.frame || !this.box.clientWidth) return;
      this.span ??= this.atFirst();
      this.arrange();
      this.draw();
    });
  }

  /** As much as there is to see, a day at most. */
  atFirst() {
    const newest = now() / 1000;
    let oldest = newest - 120;
    for (const bars of this.bars) for (const [, , start] of bars.values()) oldest = Math.min(oldest, start);
    return Math.min(86400, (newest - oldest) * 1.1);
  }

  /** What a node had, later ones over earlier ones. */
  lane(node) {
    let lane = this.lanes.get(node);
    if (!lane) {
      lane = [...this.bars[node].values()].map((bar) => {
        const job = [bar[0], ...(this.jobs[bar[0]] ?? ["", ""])];
        return { bar, job, runs: runs(bar[3]) };
      });
      lane.sort((a, b) => a.bar[2] - b.bar[2]);
      this.lanes.set(node, lane);
    }
    return lane;
  }

  /** Where nodes are, and how large the window onto them is. */
  arrange() {
    const { box, canvas, frame } = this;
    if (frame !== this.placed || innerHeight !== this.screen) this.place(frame.nodes);
    Object.assign(this, { placed: frame, screen: innerHeight });
    const width = box.clientWidth, height = Math.min(this.high, box.clientHeight), ratio = devicePixelRatio || 1;
    const shape = `${width} ${height} ${ratio}`;
    if (shape === this.shape) return;
    Object.assign(this, { shape, width, height, ratio });
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }

  place(nodes) {
    const lanes = nodes.reduce((sum, [, , n]) => sum + n, 0);
    // Without scrolling where that leaves something to see.
    const room = (innerHeight * 0.66 - TOP) / lanes, row = Math.min(12, Math.max(2, Math.floor(room * 0.92))), gap = row > 4 ? 5 : 2;
    let high = TOP;
    this.tops = nodes.map(([, , n]) => {
      const top = high;
      high += n * row + gap;
      return top;
    });
    Object.assign(this, { row, gap, high });
    this.tall.style.height = `${high}px`;
  }

  draw() {
    const { pen, width, height, ratio } = this;
    if (!this.ink) Object.assign(this, { ink: palette(), inks: new Map(), colours: marks.map((mark) => getComputedStyle(mark.querySelector("i")).backgroundColor) });
    const until = this.until(), from = until - this.span, wide = this.wide();
    this.x = (t) => LEFT + ((t - from) / this.span) * wide;
    this.hits = [];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    this.axis(from, until);
    // Nodes go under the times as they scroll.
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP, width, height - TOP);
    pen.clip();
    const scrolled = this.box.scrollTop;
    const first = this.first(scrolled + TOP);
    let node = first;
    for (; node < this.tops.length && this.tops[node] - scrolled < height; node++) {
      this.node(node, this.tops[node] - scrolled, from, until, wide);
    }
    this.inSight = [first, node - 1];
    this.drawn = now() / 1000;
    pen.restore();
    const x = this.x(now() / 1000);
    if (x <= width) { pen.fillStyle = this.ink.accent; pen.fillRect(x - 1, TOP - 4, 1.5, height); }
  }

  /** The last node that begins at this height or above it. */
  first(y) {
    let low = 0, high = this.tops.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle] <= y) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  axis(from, until) {
    const { pen, ink, height } = this, step = steps.find((s) => this.span / s <= 10) ?? steps.at(-1);
    const zone = new Date().getTimezoneOffset() * 60;
    for (let t = Math.ceil((from - zone) / step) * step + zone; t <= until; t += step) {
      const x = this.x(t);
      pen.fillStyle = ink.line;
      pen.fillRect(x, TOP - 4, 1, height);
      pen.fillStyle = ink.sub;
      pen.fillText(pointWords(t * 1000), x + 3, 12);
    }
  }

  node(node, top, from, until, wide) {
    const { pen, ink, row, gap } = this, [name, , n] = this.frame.nodes[node], tall = n * row;
    pen.fillStyle = ink.cell;
    pen.globalAlpha = 0.45;
    pen.fillRect(LEFT, top, wide, tall);
    pen.globalAlpha = 1;
    if (tall + gap >= 11) { pen.fillStyle = ink.sub; pen.fillText(name, 0, top + Math.min(tall, 10), LEFT - 8); }
    // The page says it in any case.
    if (this.more[node] && tall >= 26) pen.fillText(`and ${this.more[node]} more`, 0, top + tall - 2, LEFT - 8);
    for (const one of this.lane(node)) this.bar(one, top, from, until, wide);
  }

  bar(one, top, from, until, wide) {
    const { bar, job } = one, [id, , start, , stop, end] = bar, { pen, ink, row } = this, colour = this.colours[end];
    const over = stop || now() / 1000;
    if (over < from || start > until) return;
    const x = Math.max(LEFT, this.x(start)), long = Math.max(1.5, Math.min(this.x(over), LEFT + wide) - x);
    for (const run of one.runs) {
      const y = top + run[0] * row, tall = (run[1] - run[0] + 1) * row - (row > 4 ? 1 : 0);
      pen.fillStyle = colour;
      pen.fillRect(x, y, long, tall);
      // Where one ends and the next begins.
      if (long > 4) { pen.fillStyle = ink.ground; pen.fillRect(x, y, 1, tall); }
      if (id === this.pointed) { pen.strokeStyle = ink.text; pen.lineWidth = 1.5; pen.strokeRect(x + 0.75, y + 0.75, Math.max(1, long - 1.5), Math.max(1, tall - 1.5)); }
      if (long > 60 && tall >= 11) {
        pen.fillStyle = this.onto(colour);
        pen.fillText(`${job[0]} ${job[1]}`, x + 4, y + Math.min(tall, 12) - 2, long - 8);
      }
      this.hits.push([x, y, long, tall, one]);
    }
  }

  /** Worked out once for each colour. */
  onto(colour) {
    if (!this.inks.has(colour)) this.inks.set(colour, onto(colour));
    return this.inks.get(colour);
  }

  find(x, y) {
    if (y < TOP) return undefined;
    return this.hits.findLast(([bx, by, w, h]) => x >= bx && x <= bx + w && y >= by && y <= by + h)?.[4];
  }

  /** Of the bar that is pointed at; all bars of its job stand out. */
  tell(found) {
    const pointed = found?.bar[0];
    if (pointed !== this.pointed) { this.pointed = pointed; this.later(); }
    if (!found) { this.out.textContent = "Point at a bar."; return; }
    const [, node, start, lanes, stop, end] = found.bar, [id, name, user] = found.job, [host, gpus] = this.frame.nodes[node] ?? ["", 0];
    const on = lanes[0] < gpus ? `GPU ${lanes.join(" ")}` : "no GPU";
    this.out.textContent = `job ${id} ${name} (${user}) · ${host} ${on} · ${pointWords(start * 1000)} to ${stop ? pointWords(stop * 1000) : "now"} · ${ends[end]}`;
  }
}

function keyOf([job, , start]) {
  return `${job} ${start}`;
}

/** Dark or bright words, whichever can be read on this colour. */
function onto(colour) {
  const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#11151a" : "#ffffff";
}

/** Indices that follow each other are one block. */
function runs(list) {
  const out = [];
  for (const n of list) {
    if (out.length && out.at(-1)[1] === n - 1) out.at(-1)[1] = n;
    else out.push([n, n]);
  }
  return out;
}

export function startGantt(box) {
  return box ? new Gantt(box) : null;
}
