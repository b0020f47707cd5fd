// Charts over time by uPlot, with the newest values in words and a table beside each.
import { isDark, palette } from "./colours.js";
import { pointWords } from "./live.js";
import { inWords } from "./words.js";

const ROWS = 40;
// Seconds that one row of the table stands for.
const windows = [1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 6 * 3600, 86400];
const drawn = new Map();

/** Of the day, with seconds only where they differ. */
function hour(t, step) {
  const at = new Date(t * 1000), two = (n) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}` + (step < 60 ? `:${two(at.getSeconds())}` : "");
}

const percent = (v) => (v == null ? "–" : `${Math.round(v)} %`);
const amount = (unit, digits) => (v) => (v == null ? "–" : `${v.toFixed(digits)} ${unit}`);
const whole = (v) => (v == null ? "–" : String(v));

/** What is drawn of what is sent: one picture for each list. */
const pictures = {
  pulse: [
    { height: 150, wide: true, fixed: [0, 100], say: percent, lines: [["held", "GPUs held", "accent"], ["active", "active", "warn"]] },
    { height: 130, say: whole, lines: [["pending", "waiting", "bad"], ["running", "running", "accent"]] },
    { height: 130, say: amount("kW", 0), lines: [["power", "power", "sub"]] },
  ],
  training: [
    { height: 190, free: true, say: (v) => (v == null ? "–" : v.toPrecision(4)), lines: [["loss", "loss", "accent"]] },
    { height: 190, say: amount("s", 2), lines: [["pace", "time of a step", "warn"]] },
  ],
  node: [
    { height: 150, wide: true, fixed: [0, 100], say: percent, lines: [["active", "activity", "accent"]] },
    { height: 130, say: amount("W", 0), lines: [["power", "power", "warn"]] },
    { height: 130, say: amount("°C", 0), lines: [["temp", "hottest GPU", "bad"]] },
  ],
  endpoint: [
    { height: 130, say: amount("/s", 1), lines: [["requests", "requests", "accent"], ["failed", "failed", "bad"]] },
    { height: 130, say: amount("ms", 0), lines: [["first_byte", "first byte, p95", "warn"]] },
    { height: 130, say: whole, lines: [["in_flight", "under way", "accent"], ["queued", "waiting", "bad"]] },
    { height: 130, say: whole, lines: [["ready", "replicas that answer", "good"], ["want", "wanted", "sub"]] },
  ],
  // As many lines as there are teams.
  shares: (series) => [{
    height: 210, say: (v) => (v == null ? "–" : String(v)),
    lines: series.names.map((name, i) => [`held${i}`, name, i]),
  }],
};

// Lines are told apart by their form too.
const dashes = [undefined, [5, 3], [2, 2], [9, 3, 2, 3]];
const forms = ["━━", "╍╍", "┅┅", "━╍"];

const colourOf = (ink, colour) => (typeof colour === "number" ? ink.kind(colour) : ink[colour]);

function legend(picture, ink) {
  const box = document.createElement("p");
  box.className = "legend";
  picture.lines.forEach(([, label, colour], i) => {
    const item = document.createElement("span"), sign = document.createElement("span");
    sign.setAttribute("aria-hidden", "true");
    sign.textContent = forms[i % forms.length];
    sign.style.color = colourOf(ink, colour);
    item.append(sign, label);
    box.append(item);
  });
  return box;
}

/** From nothing up; where only the form counts, just around the curve. */
function heights(picture, min, max) {
  const room = ((max - min) || Math.abs(max) || 1) * 0.08;
  return picture.free && min != null ? [min - room, max + room] : [Math.min(0, min ?? 0), max > 0 ? max * 1.1 : 1];
}

function options(picture, ink, width) {
  const axis = { stroke: ink.sub, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width, height: picture.height,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (u, min, max) => picture.fixed ?? heights(picture, min, max) } },
    axes: [{ ...axis, values: (u, ticks, at, space, step) => ticks.map((t) => hour(t, step)) }, { ...axis, size: 46, space: 28 }],
    series: [{}, ...picture.lines.map(([, label, colour], i) => ({
      label, stroke: colourOf(ink, colour), width: 1.5, spanGaps: false, points: { show: false },
      dash: dashes[i % dashes.length],
      fill: i || picture.lines.length > 2 ? undefined : colourOf(ink, colour) + "22",
    }))],
  };
}

function words(picture, series, at) {
  const time = series.t[at];
  const values = picture.lines.map(([key, label]) => `${label} ${picture.say(series[key][at])}`);
  return time === undefined ? "" : `${pointWords(time * 1000)}: ${values.join(", ")}`;
}

/** So long that there are no more rows than can be read, and always the same points are in one. */
function windowOf(times) {
  const span = times.length ? times.at(-1) - times[0] : 0;
  return windows.find((secs) => span / secs <= ROWS) ?? Math.ceil(span / ROWS);
}

/** The newest point of each window of time, newest first. */
function* points(list, { t, ...series }) {
  const lines = list.flatMap((picture) => picture.lines.map(([key]) => [key, picture.say])), secs = windowOf(t);
  let before = null;
  for (let i = t.length - 1; i >= 0; i--) {
    const at = Math.floor(t[i] / secs);
    if (at === before) continue;
    before = at;
    yield [`${secs} ${at}`, [pointWords(t[i] * 1000), ...lines.map(([key, say]) => say(series[key]?.[i]))]];
  }
}

/** The same in words, filled while it is open. */
function table(list, known) {
  const details = document.createElement("details"), summary = document.createElement("summary");
  summary.textContent = "The same as a table";
  const box = document.createElement("div"), made = document.createElement("table");
  box.className = "scroll";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Values");
  const head = made.createTHead().insertRow();
  for (const label of ["Time", ...list.flatMap((picture) => picture.lines.map(([, label]) => label))]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = label;
    head.append(cell);
  }
  made.createTBody();
  box.append(made);
  details.append(summary, box);
  details.fill = inWords(details, () => points(list, known.series));
  return details;
}

const dataOf = (picture, series) => [series.t, ...picture.lines.map(([key]) => series[key])];

/** One picture; `known.series` is what is drawn, and may be replaced. */
function figure(picture, known, ink, box) {
  const frame = document.createElement("figure"), caption = document.createElement("figcaption"), holder = document.createElement("div");
  const say = (at) => words(picture, known.series, at ?? known.series.t.length - 1);
  const tell = () => {
    caption.textContent = say();
    holder.setAttribute("aria-label", `Curve of ${picture.lines.map(([, label]) => label).join(" and ")}. Newest: ${say()}`);
  };
  holder.setAttribute("role", "img");
  tell();
  const head = document.createElement("div");
  head.className = "over";
  head.append(caption);
  if (picture.lines.length > 1) head.append(legend(picture, ink));
  frame.append(head, holder);
  frame.classList.toggle("wide", Boolean(picture.wide));
  box.append(frame);
  const made = options(picture, ink, frame.clientWidth || 600);
  made.hooks = { setCursor: [(plot) => { caption.textContent = say(plot.cursor.idx); }] };
  const plot = new window.uPlot(made, dataOf(picture, known.series), holder);
  return { plot, frame, again: () => { plot.setData(dataOf(picture, known.series)); tell(); } };
}

export function drawChart(id, series) {
  const box = document.getElementById(id);
  if (!box || !window.uPlot || !pictures[id]) return;
  series.held?.forEach?.((values, i) => { if (Array.isArray(values)) series[`held${i}`] = values; });
  const all = typeof pictures[id] === "function" ? pictures[id](series) : pictures[id];
  const list = all.filter((picture) => picture.lines.some(([key]) => series[key]?.some((v) => v != null)));
  const shape = JSON.stringify([isDark(), list.map((picture) => picture.lines)]), had = drawn.get(id);
  if (had?.shape === shape) {
    // The same lines: only what they show is new.
    had.series = series;
    had.figures.forEach((figure) => figure.again());
    had.details?.fill();
    return;
  }
  had?.figures.forEach(({ plot }) => plot.destroy());
  had?.observer.disconnect();
  box.replaceChildren();
  box.closest("[data-charts]")?.removeAttribute("hidden");
  const known = { series, shape }, ink = palette();
  known.figures = list.map((picture) => figure(picture, known, ink, box));
  if (!list.length) {
    const none = document.createElement("p");
    none.className = "sub";
    none.textContent = "Nothing is known yet.";
    box.append(none);
  } else {
    known.details = table(list, known);
    box.append(known.details);
    known.details.open = Boolean(had?.details?.open);
  }
  known.observer = new ResizeObserver(() => known.figures.forEach(({ plot, frame }) => {
    if (frame.clientWidth && plot.width !== frame.clientWidth) plot.setSize({ width: frame.clientWidth, height: plot.height });
  }));
  known.observer.observe(box);
  drawn.set(id, known);
}

/** In the colours of the other light. */
export function redrawCharts() {
  [...drawn].forEach(([id, { series }]) => drawChart(id, series));
}
