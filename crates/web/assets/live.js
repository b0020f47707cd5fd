// One stream for each page. The server sends what has changed; pieces are put in place here.

const loaded = Date.now(), first = Number(document.body.dataset.now || loaded);
const pace = Number(document.body.dataset.pace ?? 1);

/** By the controller's clock, which in a simulation goes faster, or not at all. */
export function now() {
  return first + (Date.now() - loaded) * pace;
}

/** Milliseconds as people say them: the two largest units. */
export function spanWords(ms) {
  let secs = Math.max(0, Math.floor(ms / 1000));
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => secs >= size);
  if (first < 0) return "0s";
  const [unit, size] = units[first];
  const next = units[first + 1];
  const rest = next ? Math.floor((secs % size) / next[1]) : 0;
  return `${Math.floor(secs / size)}${unit}` + (rest ? ` ${rest}${next[0]}` : "");
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

export function pointWords(ms) {
  const at = new Date(ms);
  return at.toDateString() === new Date(now()).toDateString() ? clock.format(at) : day.format(at);
}

function count(element) {
  const since = element.dataset.since, until = element.dataset.until;
  if (since) element.textContent = spanWords(now() - Number(since));
  else if (until) {
    const left = Number(until) - now();
    element.textContent = left < 1000 ? "any moment" : "in " + spanWords(left);
  }
}

/** Times in the reader's own zone. */
export function localise(root) {
  for (const element of root.querySelectorAll("time[data-t]")) {
    const ms = Number(element.dataset.t);
    element.textContent = pointWords(ms);
    element.title = new Date(ms).toISOString();
  }
  for (const element of root.querySelectorAll("time[data-since], time[data-until]")) {
    element.title = new Date(Number(element.dataset.since || element.dataset.until)).toISOString();
    count(element);
  }
}

export function tick() {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[data-clock]")) element.textContent = day.format(now());
  for (const element of document.querySelectorAll("time[data-since], time[data-until]")) count(element);
}

/** New markup in place of old, with what the reader has opened and where the reader is. */
function replace(id, html) {
  const region = document.getElementById(id);
  if (!region) return;
  const open = [...region.querySelectorAll("details")].map((details) => details.open);
  const tops = [...region.querySelectorAll(".scroll")].map((box) => box.scrollTop);
  const focused = region.contains(document.activeElement)
    ? [...region.querySelectorAll("a, button, summary, input, [tabindex]")].indexOf(document.activeElement) : -1;
  region.innerHTML = html;
  region.querySelectorAll("details").forEach((details, i) => { details.open = open[i] ?? details.open; });
  region.querySelectorAll(".scroll").forEach((box, i) => { box.scrollTop = tops[i] ?? 0; });
  localise(region);
  if (focused >= 0) [...region.querySelectorAll("a, button, summary, input, [tabindex]")][focused]?.focus();
}

function status(words, state) {
  const link = document.getElementById("link");
  if (!link) return;
  link.textContent = words;
  link.dataset.state = state;
}

/** Opens the stream, closes it while nobody looks, and opens it again. */
export function connect(handlers) {
  const url = document.body.dataset.live;
  if (!url) return status("", "");
  let source = null, tries = 0, timer = 0;
  const take = {
    html: (regions) => Object.entries(regions).forEach(([id, html]) => replace(id, html)),
    ...handlers,
  };
  function open() {
    clearTimeout(timer);
    if (source || document.hidden) return;
    source = new EventSource(url);
    source.onopen = () => { tries = 0; status("live", "live"); };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return status("reconnecting", "broken");
      source = null;
      tries += 1;
      if (tries > 3) return status("not connected: load the page again", "broken");
      status("reconnecting", "broken");
      timer = setTimeout(open, 2000 * tries);
    };
    for (const [name, handler] of Object.entries(take)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
  }
  function close() {
    source?.close();
    source = null;
    status("paused", "paused");
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
