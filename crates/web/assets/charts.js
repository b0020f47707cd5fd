// Charts over time by uPlot, with the newest values in words and a table beside each.
import { palette } from "./colours.js";
import { pointWords } from "./live.js";

const ROWS = 40;
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
    { height: 170, fixed: [0, 100], say: percent, lines: [["held", "GPUs held", "accent"], ["active", "active", "warn"]] },
    { height: 120, say: whole, lines: [["pending", "waiting", "bad"], ["running", "running", "accent"]] },
    { height: 110, say: amount("kW", 1), lines: [["power", "power", "sub"]] },
  ],
  training: [
    { height: 200, say: (v) => (v == null ? "–" : v.toPrecision(4)), lines: [["loss", "loss", "accent"]] },
    { height: 120, say: amount("s", 2), lines: [["pace", "time of a step", "warn"]] },
  ],
  node: [
    { height: 150, fixed: [0, 100], say: percent, lines: [["active", "activity", "accent"]] },
    { height: 110, say: amount("W", 0), lines: [["power", "power", "warn"]] },
    { height: 110, say: amount("°C", 0), lines: [["temp", "hottest GPU", "bad"]] },
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

function options(picture, ink, width) {
  const axis = { stroke: ink.sub, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width, height: picture.height,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (u, min, max) => picture.fixed ?? [Math.min(0, min ?? 0), max > 0 ? max * 1.1 : 1] } },
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

function table(list, series) {
  const details = document.createElement("details"), summary = document.createElement("summary");
  summary.textContent = "The same as a table";
  details.append(summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const lines = list.flatMap((picture) => picture.lines.map(([key, label]) => [key, label, picture.say]));
    const box = document.createElement("div"), made = document.createElement("table");
    box.className = "scroll";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Values");
    const head = made.createTHead().insertRow();
    for (const label of ["Time", ...lines.map(([, label]) => label)]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = label;
      head.append(cell);
    }
    const body = made.createTBody(), step = Math.max(1, Math.ceil(series.t.length / ROWS));
    for (let i = series.t.length - 1; i >= 0; i -= step) {
      const row = body.insertRow();
      row.insertCell().textContent = pointWords(series.t[i] * 1000);
      for (const [key, , say] of lines) row.insertCell().textContent = say(series[key][i]);
    }
    box.append(made);
    details.append(box);
  });
  return details;
}

export function drawChart(id, series) {
  const box = document.getElementById(id);
  if (!box || !window.uPlot || !pictures[id]) return;
  series.held?.forEach?.((values, i) => { if (Array.isArray(values)) series[`held${i}`] = values; });
  const had = drawn.get(id);
  const open = had?.box.querySelector("details")?.open;
  had?.plots.forEach((plot) => plot.destroy());
  had?.observer.disconnect();
  box.replaceChildren();
  box.closest("[data-charts]")?.removeAttribute("hidden");
  const ink = palette(), known = pictures[id], list = typeof known === "function" ? known(series) : known;
  const plots = list.filter((picture) => picture.lines.some(([key]) => series[key]?.some((v) => v != null))).map((picture) => {
    const frame = document.createElement("figure"), caption = document.createElement("figcaption"), holder = document.createElement("div");
    const last = series.t.length - 1;
    caption.textContent = words(picture, series, last);
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `Curve of ${picture.lines.map(([, label]) => label).join(" and ")}. Newest: ${words(picture, series, last)}`);
    frame.append(caption);
    if (picture.lines.length > 1) frame.append(legend(picture, ink));
    frame.append(holder);
    box.append(frame);
    const data = [series.t, ...picture.lines.map(([key]) => series[key])];
    const made = options(picture, ink, box.clientWidth || 600);
    made.hooks = { setCursor: [(plot) => { caption.textContent = words(picture, series, plot.cursor.idx ?? last); }] };
    return new window.uPlot(made, data, holder);
  });
  if (!plots.length) {
    const none = document.createElement("p");
    none.className = "sub";
    none.textContent = "Nothing is known yet.";
    box.append(none);
  } else {
    box.append(table(list, series));
    box.querySelector("details").open = Boolean(open);
  }
  const observer = new ResizeObserver(() => plots.forEach((plot) => {
    if (box.clientWidth && plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: plot.height });
  }));
  observer.observe(box);
  drawn.set(id, { plots, series, box, observer });
}

/** In the colours of the other light. */
export function redrawCharts() {
  [...drawn].forEach(([id, { series }]) => drawChart(id, series));
}
