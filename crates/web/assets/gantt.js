// Who had which GPU when, on a canvas that can be moved and zoomed.
import { palette } from "./colours.js";
import { now, pointWords } from "./live.js";

const LEFT = 92, TOP = 22;
// What is over is paler.
const OVER = 0.62;
// Of the 16 that a frame has.
const FRAME_MS = 6;
const OPEN = 0, FAILED = 2, REQUEUED = 4;
const ends = ["goes on", "completed", "failed", "cancelled", "to be started again"];
const steps = [60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400];

class Gantt {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.out = document.getElementById("bar");
    this.span = null;
    this.end = null;
    new ResizeObserver(() => this.redraw()).observe(box);
    for (const button of document.querySelectorAll("[data-hours]")) button.addEventListener("click", () => { this.end = null; this.span = button.dataset.hours * 3600; this.redraw(); });
    for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => this.zoom(button.dataset.zoom === "in" ? 0.5 : 2));
    this.listen();
  }

  listen() {
    const { canvas } = this;
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
      const still = this.grabbed && !this.grabbed.moved, bar = this.find(event.offsetX, event.offsetY);
      this.grabbed = null;
      if (still && bar) location.href = `/jobs/${this.data.jobs[bar[0]][0]}`;
    });
    this.box.addEventListener("keydown", (event) => {
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
    this.end = end >= newest ? null : Math.max(end, this.data ? this.data.from : 0);
    this.redraw();
  }

  zoom(by, at = 1) {
    const until = this.until(), from = until - this.span, point = from + this.span * at;
    this.span = Math.min(31 * 86400, Math.max(60, this.span * by));
    this.move(point + this.span * (1 - at));
  }

  show(data) {
    this.data = data;
    // At first as much as there is to see, a day at most.
    const oldest = data.bars.reduce((least, bar) => Math.min(least, bar[3]), now() / 1000 - 120);
    this.span ??= Math.min(86400, (now() / 1000 - oldest) * 1.1);
    this.redraw(true);
  }

  /** `bit` by bit, beside what is seen, if it is only news that came; at once if somebody moves it. */
  redraw(bit = false) {
    const { data, box } = this;
    cancelAnimationFrame(this.asked);
    if (!data || !box.clientWidth || !this.span) return;
    this.begin();
    let next = 0;
    const draw = () => {
      const until = performance.now() + FRAME_MS;
      while (next < data.bars.length) {
        this.bar(data.bars[next], this.ink, this.from, this.to);
        next += 1;
        if (bit && next % 16 === 0 && performance.now() > until) {
          this.asked = requestAnimationFrame(draw);
          return;
        }
      }
      this.finish();
    };
    draw();
  }

  /** The ground, on a canvas that is not shown yet. */
  begin() {
    const { data } = this, width = this.box.clientWidth;
    const gpus = data.nodes.reduce((sum, [, n]) => sum + Math.max(1, n), 0);
    // Without scrolling where that leaves something to see.
    const room = (innerHeight * 0.66 - TOP) / gpus, row = Math.min(12, Math.max(2, Math.floor(room * 0.92))), gap = row > 4 ? 5 : 2;
    const height = TOP + data.nodes.reduce((sum, [, n]) => sum + Math.max(1, n) * row + gap, 0), ratio = devicePixelRatio || 1;
    this.back = document.createElement("canvas");
    this.back.width = width * ratio;
    this.back.height = height * ratio;
    const pen = this.back.getContext("2d"), ink = palette();
    this.pen = pen;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const until = this.until(), from = until - this.span;
    Object.assign(this, { ink, from, to: until, wideAll: width, high: height, row, drawn: [] });
    this.x = (t) => LEFT + ((t - from) / this.span) * this.wide();
    pen.font = "11px system-ui, sans-serif";
    this.axis(ink, from, until, height);
    let y = TOP;
    this.tops = data.nodes.map(([name, n]) => {
      const top = y, tall = Math.max(1, n) * row;
      pen.fillStyle = ink.cell;
      pen.globalAlpha = 0.45;
      pen.fillRect(LEFT, top, this.wide(), tall);
      pen.globalAlpha = 1;
      if (tall + gap >= 11) { pen.fillStyle = ink.sub; pen.fillText(name, 0, top + Math.min(tall, 10), LEFT - 8); }
      y += tall + gap;
      return top;
    });
  }

  /** Shows what was drawn. */
  finish() {
    const { pen, ink, canvas, back, wideAll, high } = this, x = this.x(now() / 1000);
    if (x <= wideAll) { pen.fillStyle = ink.accent; pen.fillRect(x - 1, TOP - 4, 1.5, high); }
    this.hits = this.drawn;
    canvas.width = back.width;
    canvas.height = back.height;
    canvas.style.width = `${wideAll}px`;
    canvas.style.height = `${high}px`;
    canvas.getContext("2d").drawImage(back, 0, 0);
  }

  axis(ink, from, until, height) {
    const { pen } = this, step = steps.find((s) => this.span / s <= 10) ?? steps.at(-1);
    const zone = new Date().getTimezoneOffset() * 60;
    for (let t = Math.ceil((from - zone) / step) * step + zone; t <= until; t += step) {
      const x = this.x(t);
      pen.fillStyle = ink.line;
      pen.fillRect(x, TOP - 4, 1, height);
      pen.fillStyle = ink.sub;
      pen.fillText(pointWords(t * 1000), x + 3, 12);
    }
  }

  bar(bar, ink, from, until) {
    const [job, node, gpus, start, stop, end] = bar, { pen, row } = this;
    const over = stop || now() / 1000;
    if (over < from || start > until) return;
    const x = Math.max(LEFT, this.x(start)), wide = Math.max(1.5, Math.min(this.x(over), LEFT + this.wide()) - x);
    const lanes = gpus.length ? gpus : [0];
    const number = Number.parseInt(this.data.jobs[job][0], 10);
    for (const run of runs(lanes)) {
      const y = this.tops[node] + run[0] * row, tall = (run[1] - run[0] + 1) * row - (row > 4 ? 1 : 0);
      pen.fillStyle = ink.kind(number);
      pen.globalAlpha = end === OPEN ? 1 : OVER;
      pen.fillRect(x, y, wide, tall);
      pen.globalAlpha = 1;
      if (end === FAILED) { pen.fillStyle = ink.bad; pen.fillRect(x + wide - 3, y, 3, tall); }
      if (end === REQUEUED) { pen.fillStyle = ink.warn; pen.fillRect(x + wide - 3, y, 3, tall / 2); }
      if (wide > 60 && tall >= 11) {
        pen.fillStyle = onto(ink.kind(number), ink.ground, end === OPEN ? 1 : OVER);
        pen.fillText(`${this.data.jobs[job][0]} ${this.data.jobs[job][1]}`, x + 4, y + Math.min(tall, 12) - 2, wide - 8);
      }
      this.drawn.push([x, y, wide, tall, bar]);
    }
  }

  find(x, y) {
    return this.hits?.findLast(([bx, by, w, h]) => x >= bx && x <= bx + w && y >= by && y <= by + h)?.[4];
  }

  tell(bar) {
    if (!bar) { this.out.textContent = "Point at a bar."; return; }
    const [job, node, gpus, start, stop, end] = bar, [id, name, user] = this.data.jobs[job];
    const on = gpus.length ? ` GPU ${gpus.join(" ")}` : "";
    this.out.textContent = `job ${id} ${name} (${user}) · ${this.data.nodes[node][0]}${on} · ${pointWords(start * 1000)} to ${stop ? pointWords(stop * 1000) : "now"} · ${ends[end]}`;
  }
}

/** Dark or bright words, whichever can be read on this colour over this ground. */
function onto(colour, ground, alpha) {
  const parts = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16) / 255);
  const under = parts(ground), mixed = parts(colour).map((part, i) => part * alpha + under[i] * (1 - alpha));
  const [r, g, b] = mixed.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
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
