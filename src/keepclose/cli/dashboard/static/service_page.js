// All about the chosen Service: figures, expected and measured shares, reasons, advice, and what
// another mechanism would do.

import { byId, el, setChildren } from "./dom.js";
import { bytes, classOfState, count, markOfState, nameOfZone, percent, times } from "./words.js";

const FLOWS = {
  "as asked": "Connections go as the Service asks.",
  "not as asked": "Connections arrive, and do not go as the Service asks.",
  blocked: "Connections find no endpoint.",
  unknown: "No node is known that could route the Service.",
};

export class ServicePageView {
  constructor({ onPreview, onApply }) {
    this.onPreview = onPreview;
    this.onApply = onApply;
    this.isArmed = false;
  }

  showNothing() {
    setChildren(
      byId("page"),
      el("h2", {}, "Choose a Service"),
      el("p", { class: "dim" }, "Its traffic, the reasons, and what would help appear here."),
    );
  }

  showError(key, text) {
    setChildren(byId("page"), el("h2", {}, key), el("p", { class: "harm" }, text));
  }

  show({ page, preview, previewError, wanted, flows, canWrite, cluster, notice }) {
    const focused = document.activeElement?.id;
    const isOpen = byId("endpoints")?.open ?? false;
    setChildren(
      byId("page"),
      el("h2", {}, `${page.namespace}/${page.name}`),
      el(
        "p",
        { class: "line" },
        el("span", { class: "badge" }, page.mechanism),
        " ",
        el("span", { class: `state ${classOfState(page.state)}`, "data-mark": markOfState(page.state) }, page.state),
      ),
      page.source ? el("p", { class: "dim" }, el("code", {}, page.source)) : null,
      figures(page.traffic),
      page.pending ? el("p", { class: "dim" }, `A controller with these settings would change the slices: ${page.pending}.`) : null,
      el("h3", {}, "What if"),
      this.chooser(page, wanted),
      this.previewBox(preview, previewError, canWrite, cluster),
      el("p", { role: "status", id: "notice" }, notice),
      el("h3", {}, "Shares by zone"),
      shareTable(preview ? preview.traffic : page.traffic, preview ? null : flows),
      el("h3", {}, preview ? "How it would be decided" : "Why"),
      preview ? null : el("p", {}, FLOWS[page.flow] ?? page.flow),
      preview ? reasonList(preview.reasons) : reasonList(page.causes),
      preview || !page.reasons.length ? null : el("h3", {}, "How it was decided"),
      preview || !page.reasons.length ? null : reasonList(page.reasons),
      ...endpointTable(preview ? preview.traffic : page.traffic),
    );
    byId("endpoints")?.toggleAttribute("open", isOpen);
    if (focused) byId(focused)?.focus();
  }

  chooser(page, wanted) {
    if (page.fixed) return el("p", { class: "dim" }, `Nothing to try: ${page.fixed}.`);
    const select = el(
      "select",
      {
        id: "what-if",
        "aria-label": "Preview another mechanism; nothing is written",
        onchange: (event) => {
          this.isArmed = false;
          this.onPreview(event.target.value);
        },
      },
      el("option", { value: "" }, "as it is"),
      page.choices.map(({ name, gates }) =>
        el("option", { value: name }, gates.length ? `${name} (gate off)` : name),
      ),
    );
    select.value = wanted;
    return select;
  }

  previewBox(preview, error, canWrite, cluster) {
    if (error) return el("div", { class: "preview", id: "preview", role: "status" }, el("p", {}, error));
    if (!preview) return el("div", { id: "preview", role: "status" });
    const isPossible = preview.command && !preview.gates.length;
    return el(
      "div",
      { class: "preview", id: "preview", role: "status" },
      el("p", { class: preview.harm ? "harm" : preview.isGain ? "gain" : null }, preview.effect),
      preview.harm ? el("p", {}, `Not advised: ${preview.harm}.`) : null,
      preview.gates.length
        ? el("p", {}, `Needs the feature ${preview.gates.length === 1 ? "gate" : "gates"} ${preview.gates.join(", ")}.`)
        : null,
      preview.command ? el("code", {}, preview.command) : el("p", {}, "It governs already."),
      canWrite && isPossible
        ? el(
            "button",
            {
              class: "action",
              id: "apply",
              type: "button",
              onclick: (event) => {
                if (this.isArmed) {
                  this.isArmed = false;
                  event.target.disabled = true;
                  this.onApply(preview);
                } else {
                  this.isArmed = true;
                  event.target.textContent = `Really change the Service in ${cluster}?`;
                }
              },
            },
            this.isArmed ? `Really change the Service in ${cluster}?` : "Apply",
          )
        : null,
    );
  }
}

function figures(traffic) {
  const entries = [
    ["in zone", percent(traffic.inZone)],
    ["on node", percent(traffic.onNode)],
    ["busiest", traffic.busiest ? times(traffic.busiest) : "–"],
    ["ready", String(traffic.ready)],
  ];
  if (traffic.failed > 0) entries.push(["fails", percent(traffic.failed)]);
  return el(
    "dl",
    { class: "figures" },
    entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

function shareTable(traffic, flows) {
  const shares = new Map(traffic.arcs.map(([from, to, share]) => [`${from}\n${to}`, share]));
  const measured = new Map((flows ?? []).map(([from, to, connections, size]) => [`${from}\n${to}`, [connections, size]]));
  const pairs = [...shares.keys(), ...measured.keys()].map((key) => key.split("\n"));
  const rows = [...new Set(pairs.map(([from]) => from))].sort();
  const columns = [...new Set(pairs.map(([, to]) => to))].sort();
  if (!rows.length) return el("p", { class: "dim" }, "No traffic is routed.");
  const sum = (from, values) =>
    columns.reduce((total, to) => total + (values.get(`${from}\n${to}`) ?? 0), 0);
  const rates = new Map([...measured].map(([key, [connections]]) => [key, connections]));
  const cell = (from, to) => {
    const key = `${from}\n${to}`;
    const share = shares.get(key) ?? 0;
    const whole = sum(from, shares);
    const seen = rates.get(key);
    const parts = [share ? percent(share / whole) : "·"];
    if (flows) parts.push(el("br"), el("span", { class: "dim" }, seen ? percent(seen / sum(from, rates)) : "·"));
    const kind = share || seen ? (from === to ? "own" : "other") : "";
    return el("td", { class: kind }, parts);
  };
  const total = (flows ?? []).reduce((all, [, , connections, size]) => [all[0] + connections, all[1] + size], [0, 0]);
  return el(
    "div",
    {},
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "group", "aria-label": "Shares by zone" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "from \\ to"), columns.map((to) => el("th", { scope: "col" }, nameOfZone(to))))),
        el("tbody", {}, rows.map((from) => el("tr", {}, el("th", { scope: "row" }, nameOfZone(from)), columns.map((to) => cell(from, to))))),
      ),
    ),
    flows
      ? el("p", { class: "dim" }, `Below: measured, ${total[0].toFixed(1)} connections a second and ${bytes(total[1])} in all.`)
      : null,
  );
}

function reasonList(reasons) {
  if (!reasons.length) return null;
  return el(
    "ul",
    { class: "reasons" },
    reasons.map(({ weight, message, fix, effect }) =>
      el(
        "li",
        { class: weight === "blocks" || weight === "defeats" ? "bad" : null },
        weight === "blocks" || weight === "defeats" ? el("strong", {}, "Cause: ") : null,
        message,
        fix ? el("code", {}, fix) : null,
        effect ? el("span", { class: "dim" }, `then: ${effect}`) : null,
      ),
    ),
  );
}

function endpointTable(traffic) {
  if (!traffic.endpoints.length) return [];
  const shown = traffic.endpoints.slice(0, 50);
  const rest = traffic.endpoints.length + traffic.unlisted - shown.length;
  return [
    el(
      "details",
      { id: "endpoints" },
      el("summary", {}, count(traffic.endpoints.length + traffic.unlisted, "endpoint")),
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          {},
          el("thead", {}, el("tr", {}, ["pod", "zone", "hints", "load"].map((head) => el("th", { scope: "col" }, head)))),
          el(
            "tbody",
            {},
            shown.map((endpoint) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, endpoint.isReady ? endpoint.name : `${endpoint.name} (not ready)`),
                el("td", {}, nameOfZone(endpoint.zone)),
                el("td", {}, endpoint.hints.join(" ") || "·"),
                el("td", {}, percent(endpoint.load)),
              ),
            ),
          ),
        ),
      ),
      rest > 0 ? el("p", { class: "dim" }, `and ${count(rest, "more endpoint", "more endpoints")}`) : null,
    ),
  ];
}
