// Before the first paint, so that nothing flashes: the light that the reader chose, else the system's.
"use strict";
{
  const chosen = localStorage.getItem("tutti-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
