// What a job's ranks write, as they write it.

const LINES_MAX = 5000;

class Log {
  constructor(box) {
    this.box = box;
    this.rank = document.getElementById("log-rank");
    this.search = document.getElementById("log-search");
    this.follow = document.getElementById("log-follow");
    this.count = document.getElementById("log-count");
    this.waiting = [];
    this.search.addEventListener("input", () => this.filter());
    this.rank.addEventListener("change", () => this.open());
    this.box.addEventListener("scroll", () => {
      const end = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
      if (!end && this.moved) this.follow.checked = false;
    });
    this.box.addEventListener("wheel", () => { this.moved = true; }, { passive: true });
    this.follow.addEventListener("change", () => { this.moved = false; this.toEnd(); });
    // Browsers have few connections for all tabs: nobody reads in one that is hidden.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.again()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.again());
    this.open();
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  /** With its last lines: there is no place in it to go on from. What has ended is all there. */
  again() {
    if (!this.source && !this.over && !document.hidden) this.open();
  }

  open() {
    this.close();
    this.over = false;
    this.waiting = [];
    this.box.replaceChildren();
    if (document.hidden) return;
    const query = new URLSearchParams({ follow: "true", tail: "1000" });
    if (this.rank.value.trim()) query.set("rank", this.rank.value.trim());
    const source = new EventSource(`/api/v1/jobs/${this.box.dataset.job}/logs?${query}`);
    this.source = source;
    source.addEventListener("line", (event) => this.put(JSON.parse(event.data)));
    source.addEventListener("note", (event) => this.put({ note: JSON.parse(event.data).text }));
    source.addEventListener("end", () => { this.close(); this.over = true; this.put({ note: "end of the log" }); });
    // It would begin again from the start: better to say so and stop.
    source.onerror = () => { if (this.source !== source) return; this.close(); this.put({ note: "the log broke off; load the page again to go on" }); };
  }

  put(line) {
    this.waiting.push(line);
    if (this.waiting.length === 1) requestAnimationFrame(() => this.flush());
  }

  flush() {
    const words = this.search.value.toLowerCase();
    const made = this.waiting.slice(-LINES_MAX).map((line) => {
      const row = document.createElement("div");
      if (line.note !== undefined) {
        row.className = "note";
        row.textContent = line.note;
      } else {
        const rank = document.createElement("span"), text = document.createElement("span");
        rank.className = "rank";
        rank.textContent = line.rank;
        text.textContent = line.raw !== undefined ? atob(line.raw) : line.text;
        if (line.stream === "err") text.className = "err";
        row.append(rank, text);
      }
      row.hidden = words !== "" && !row.textContent.toLowerCase().includes(words);
      return row;
    });
    this.waiting = [];
    this.box.append(...made);
    while (this.box.childElementCount > LINES_MAX) this.box.firstElementChild.remove();
    this.counted();
    this.toEnd();
  }

  filter() {
    const words = this.search.value.toLowerCase();
    for (const row of this.box.children) row.hidden = words !== "" && !row.textContent.toLowerCase().includes(words);
    this.counted();
  }

  counted() {
    if (!this.search.value) { this.count.textContent = ""; return; }
    const found = this.box.querySelectorAll(":scope > :not([hidden])").length;
    this.count.textContent = `${found} of ${this.box.childElementCount} lines`;
  }

  toEnd() {
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight;
  }
}

export function startLog(box) {
  return box ? new Log(box) : null;
}
