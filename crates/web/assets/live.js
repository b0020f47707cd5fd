// One stream for each page. The server sends what has changed; pieces are put in place here.
import { morph, parsed, say } from "./morph.js";

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

const counted = "time[data-since], time[data-until]";
// All that count, so that nobody has to look for them in a long page.
const counters = new Set();
const clocks = [...document.querySelectorAll("time[data-clock]")];

// From here on what is counted is told in minutes: seconds would keep a long list busy, and nobody needs them.
const MINUTES_FROM = 600_000;

function countWords(ms) {
  return spanWords(ms < MINUTES_FROM ? ms : ms - (ms % 60_000));
}

function count(element) {
  const { since, until } = element.dataset;
  if (since) return say(element, countWords(now() - Number(since)));
  const left = Number(until) - now(), late = element.closest(".late");
  // Once was enough.
  if (late) late.hidden = left < 1000;
  say(element, left < 1000 ? "any moment" : "in " + countWords(left));
}

/** Times in the reader's own zone. */
export function localise(root) {
  for (const element of root.querySelectorAll("time[data-t]")) {
    const ms = Number(element.dataset.t);
    element.textContent = pointWords(ms);
    element.title = new Date(ms).toISOString();
  }
  for (const element of root.querySelectorAll(counted)) {
    element.title = new Date(Number(element.dataset.since || element.dataset.until)).toISOString();
    count(element);
    counters.add(element);
  }
}

/** Counts on, but in rows that nobody sees. */
export function tick() {
  if (document.hidden) return;
  clocks.forEach((clock) => say(clock, day.format(now())));
  for (const element of counters) {
    if (!element.isConnected) counters.delete(element);
    else if (!element.closest("tbody")?.away) count(element);
  }
}

const watchers = [(group) => group.querySelectorAll(counted).forEach(count)];

/** What to do when a group of rows comes into sight. */
export function onSight(watcher) {
  watchers.unshift(watcher);
}

document.addEventListener("contentvisibilityautostatechange", ({ target, skipped }) => {
  // Other things than rows come and go as well.
  if (target.localName !== "tbody") return;
  target.away = skipped;
  if (!skipped) watchers.forEach((watcher) => watcher(target));
}, true);

/** The browser tells when a group leaves sight and comes back, not where it is at first. */
export function look(groups) {
  const seen = (row) => row?.checkVisibility?.({ contentVisibilityAuto: true }) ?? true;
  requestAnimationFrame(() => requestAnimationFrame(() => {
    for (const group of groups) group.away ??= !seen(group.firstElementChild);
  }));
}

/** New markup in place of old: what is the same stays, with what the reader has opened and where the reader is. */
function replace(id, html) {
  const region = document.getElementById(id);
  if (!region) return;
  const wanted = parsed(html);
  localise(wanted);
  morph(region, wanted);
}

function status(words, state) {
  const link = document.getElementById("link");
  if (!link) return;
  link.textContent = words;
  link.dataset.state = state;
}

/** The stream says something every 5 s, if only that it is there. */
const SILENCE = 12_000;

/** Opens the stream, closes it while nobody looks, and opens it again. */
export function connect(handlers) {
  const url = document.body.dataset.live;
  if (!url) return status("", "");
  let source = null, tries = 0, timer = 0, heard = 0;
  const take = {
    beat: () => {},
    html: (regions) => Object.entries(regions).forEach(([id, html]) => replace(id, html)),
    ...handlers,
  };
  function open() {
    clearTimeout(timer);
    if (source || document.hidden) return;
    source = new EventSource(url);
    source.onopen = () => { tries = 0; heard = Date.now(); status("live", "live"); };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return status("reconnecting", "broken");
      source = null;
      tries += 1;
      if (tries > 3) return status("not connected: load the page again", "broken");
      status("reconnecting", "broken");
      timer = setTimeout(open, 2000 * tries);
    };
    for (const [name, handler] of Object.entries(take)) {
      source.addEventListener(name, (event) => {
        if (old()) status("live", "live");
        heard = Date.now();
        handler(JSON.parse(event.data));
      });
    }
  }
  // A controller that hangs keeps its connections: only its silence tells.
  const old = () => source?.readyState === EventSource.OPEN && Date.now() - heard > SILENCE;
  setInterval(() => {
    if (old()) status(`no answer, shown is ${spanWords(Date.now() - heard)} old`, "broken");
  }, 1000);
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
