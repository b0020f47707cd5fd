// Colours for canvases, which can't read the style sheet. Scales go from little to much in one
// direction of lightness, so that they work without colour vision too.

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// Viridis, from dark to bright.
const scale = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
];

/** 0 to 1; much stands out from the ground, in the dark and in the light. */
function scaled(share, dark) {
  const t = (dark ? share : 1 - share) * (scale.length - 1);
  const at = Math.min(scale.length - 2, Math.floor(t)), part = t - at;
  const mix = scale[at].map((from, i) => Math.round(from + (scale[at + 1][i] - from) * part));
  return `rgb(${mix.join(",")})`;
}

// Okabe and Ito's, which people with any colour vision can tell apart, softened a little, and the same
// once more in another lightness.
const kinds = {
  dark: [
    "#4fa3d8", "#e69f3c", "#3fb68e", "#d684b4", "#d9cf55", "#5e8fd0", "#d9743c", "#8fb8c9",
    "#2f7fb3", "#b97a24", "#288f6d", "#a9618d", "#a89f38", "#9db9ea", "#f0a884", "#64909f",
  ],
  light: [
    "#2478ad", "#c77f12", "#11866a", "#b0568c", "#8d8412", "#2f5fa8", "#b8501a", "#557f92",
    "#58a5d3", "#e0aa55", "#4fb396", "#cf87b3", "#b9b04c", "#7695cf", "#d98a5f", "#86a9b8",
  ],
};

/** Everything that a picture needs, worked out once for each time that all of it is drawn. */
export function palette() {
  const dark = isDark(), all = dark ? kinds.dark : kinds.light;
  return {
    ...inks(),
    // In steps of 5 %, as values are sent.
    scale: Array.from({ length: 21 }, (_, i) => scaled(i / 20, dark)),
    // Neighbours differ: numbers that follow each other are far apart in the list.
    kind: (number) => all[(number * 5) % all.length],
  };
}

export function inks() {
  return isDark()
    ? { ground: "#151a21", line: "#2c3440", edge: "#6b7684", cell: "#232b35", text: "#d9e0e8", sub: "#93a0ae", accent: "#3dc2b2", bad: "#ff7b72", warn: "#e3b341", good: "#56c288" }
    : { ground: "#ffffff", line: "#d5dae0", edge: "#8a949e", cell: "#e9edf1", text: "#1b2129", sub: "#5a6673", accent: "#0a7d72", bad: "#c62828", warn: "#9a6700", good: "#1a7f4b" };
}
