// The list of Services: a listbox whose lines change in place.

import { byId, el, setText } from "./dom.js";
import { classOfState, count, markOfState, percent } from "./words.js";

export class ServiceList {
  constructor(onChoose) {
    this.lines = new Map();
    this.onChoose = onChoose;
    this.chosen = null;
    this.box = byId("list");
    this.filter = byId("filter");
    this.filter.addEventListener("input", () => this.applyFilter());
    this.filter.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        this.box.focus();
        if (this.shown().length && !this.shown().includes(this.chosen)) this.choose(this.shown()[0]);
      }
    });
    this.box.addEventListener("click", (event) => {
      const line = event.target.closest("li");
      if (line) this.choose(line.dataset.key);
    });
    this.box.addEventListener("keydown", (event) => this.onKey(event));
  }

  update(changes) {
    let isNew = false;
    for (const [key, value] of Object.entries(changes)) {
      if (value === null) {
        this.lines.get(key)?.element.remove();
        this.lines.delete(key);
        continue;
      }
      let line = this.lines.get(key);
      if (!line) {
        line = makeLine(key, this.lines.size);
        this.lines.set(key, line);
        isNew = true;
      }
      line.show(value.row);
    }
    if (isNew) {
      const sorted = [...this.lines].sort(([one], [other]) => (one < other ? -1 : 1));
      this.lines = new Map(sorted);
      this.box.replaceChildren(...sorted.map(([, line]) => line.element));
    }
    this.applyFilter();
  }

  clear() {
    this.lines.clear();
    this.box.replaceChildren();
  }

  shown() {
    return [...this.lines].filter(([, line]) => !line.element.hidden).map(([key]) => key);
  }

  choose(key) {
    this.mark(key);
    this.onChoose(key);
  }

  mark(key) {
    if (this.chosen !== null) this.lines.get(this.chosen)?.element.setAttribute("aria-selected", "false");
    this.chosen = key;
    const line = this.lines.get(key);
    if (!line) return;
    line.element.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", line.element.id);
    line.element.scrollIntoView({ block: "nearest" });
  }

  onKey(event) {
    const shown = this.shown();
    const at = shown.indexOf(this.chosen);
    const next = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? shown.length - 1 : at - 1,
      Home: 0,
      End: shown.length - 1,
      PageDown: Math.min(at + 10, shown.length - 1),
      PageUp: Math.max(at - 10, 0),
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    if (next >= 0 && next < shown.length) this.choose(shown[next]);
  }

  applyFilter() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const line of this.lines.values()) {
      line.element.hidden = !words.every((word) => line.text.includes(word));
      shown += line.element.hidden ? 0 : 1;
    }
    const all = this.lines.size;
    setText(byId("count"), shown === all ? count(all, "Service") : `${shown} of ${count(all, "Service")}`);
  }
}

let made = 0;

function makeLine(key) {
  const name = el("div", { class: "name" });
  const badge = el("span", { class: "badge" });
  const state = el("span", { class: "state" });
  const share = el("span", { class: "share" });
  const element = el(
    "li",
    { role: "option", id: `service-${made++}`, "aria-selected": "false", "data-key": key },
    name,
    el("div", { class: "line" }, state, share),
    badge,
  );
  const line = {
    element,
    text: "",
    show(row) {
      setText(name, `${row.namespace}/${row.name}`);
      setText(badge, row.mechanism);
      setText(state, row.state);
      state.className = `state ${classOfState(row.state)}`;
      state.dataset.mark = markOfState(row.state);
      setText(share, row.inZone === null ? "" : percent(row.inZone));
      const inZone = row.inZone === null ? "" : `, ${percent(row.inZone)} in zone`;
      element.setAttribute(
        "aria-label",
        `${row.namespace}/${row.name}, ${row.mechanism}, ${row.state}${inZone}, ` +
          `${row.ready} of ${count(row.endpoints, "endpoint")} ready`,
      );
      line.text = `${row.namespace}/${row.name} ${row.mechanism} ${row.state}`.toLowerCase();
    },
  };
  return line;
}
