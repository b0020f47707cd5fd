// What every page does: times in the reader's own zone, the light, keys, changes, the live stream.
import { localise, tick } from "./live.js";
import { connect } from "./live.js";
import { startKeys } from "./keys.js";
import { startActions } from "./act.js";
import { startTables, applyRows } from "./table.js";
import { startGrid } from "./grid.js";
import { drawChart, redrawCharts } from "./charts.js";
import { startLog } from "./logs.js";
import { startGantt } from "./gantt.js";
import { isDark } from "./colours.js";

const grid = startGrid(document.getElementById("grid"));
const gantt = startGantt(document.getElementById("gantt"));

function themeChanged() {
  redrawCharts();
  grid?.redraw();
  gantt?.redraw();
}

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("tutti-theme", theme);
  themeChanged();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

const does = {
  theme: toggleTheme,
  help: () => document.getElementById("help")?.showModal(),
};
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do]");
  if (button) does[button.dataset.do]?.();
});

localise(document.body);
tick();
setInterval(tick, 1000);
startTables();
startActions();
startKeys({ does, grid });
startLog(document.getElementById("log"));
connect({
  rows: applyRows,
  series: ({ chart, series }) => drawChart(chart, series),
  grid: (sent) => grid?.show(sent),
  paint: (sent) => grid?.paint(sent),
  gantt: (sent) => gantt?.show(sent),
  bars: (sent) => gantt?.change(sent),
});
