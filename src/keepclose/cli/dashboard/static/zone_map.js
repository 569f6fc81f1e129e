// The map: zones as columns, nodes in them, endpoints of the chosen Service as dots, and arcs from
// the zones of clients to those of endpoints, as thick as their part of the traffic.

import { byId, el, setText, svg } from "./dom.js";
import { count, nameOfZone, percent } from "./words.js";

const MOST_NODES = 40;
const MOST_DOTS = 40;
const LEAST_LABELLED = 0.045;
const THICKEST = 16;

export class ZoneMap {
  constructor() {
    this.columns = [];
    this.traffic = null;
    this.arcs = [];
    this.node = null;
    this.heads = new Map();
    new ResizeObserver(() => this.drawArcs()).observe(byId("zones"));
  }

  setZones(columns) {
    this.columns = columns;
    this.draw();
  }

  /** Show the traffic of a Service; `arcs` are [client zone, endpoint zone, share]. */
  show(traffic, arcs, { isPreview = false, note = "" } = {}) {
    this.traffic = traffic;
    this.arcs = arcs;
    byId("arcs").classList.toggle("trial", isPreview);
    setText(byId("map-note"), note);
    this.draw();
  }

  draw() {
    const focused = document.activeElement?.dataset?.node;
    const onNodes = new Map();
    const onZones = new Map();
    for (const endpoint of this.traffic?.endpoints ?? []) {
      push(onNodes, endpoint.node, endpoint);
      push(onZones, endpoint.zone, endpoint);
    }
    this.heads.clear();
    byId("zones").replaceChildren(
      ...this.columns.map((column) => this.drawZone(column, onNodes, onZones.get(column.zone) ?? [])),
    );
    if (focused !== undefined) {
      for (const button of byId("zones").querySelectorAll("button")) {
        if (button.dataset.node === focused) button.focus();
      }
    }
    this.drawArcs();
    this.showNode();
  }

  drawZone(column, onNodes, endpoints) {
    const shares = sharesFrom(this.arcs, column.zone);
    const near = shares.get(column.zone) ?? 0;
    const far = [...shares.values()].reduce((sum, share) => sum + share, 0) - near;
    const whole = near + far;
    const withEndpoints = column.nodes.filter((node) => onNodes.has(node.name));
    const others = column.nodes.filter((node) => !onNodes.has(node.name));
    const shown = new Set([...withEndpoints, ...others].slice(0, MOST_NODES));
    const head = el("h3", {}, nameOfZone(column.zone));
    this.heads.set(column.zone, head);
    const ready = endpoints.filter((endpoint) => endpoint.isReady).length;
    const hidden = column.nodes.length - shown.size;
    const meter = el("div", { class: "meter", "aria-hidden": true });
    for (const [name, part] of [["near", near], ["far", far]]) {
      const bar = el("span", { class: name });
      bar.style.width = `${whole ? (100 * part) / whole : 0}%`;
      meter.append(bar);
    }
    return el(
      "section",
      { class: "zone", "aria-label": `zone ${nameOfZone(column.zone)}` },
      head,
      el(
        "p",
        { class: "dim" },
        this.traffic ? `${count(ready, "ready endpoint")}` : count(column.nodes.length, "node"),
      ),
      this.traffic && meter,
      this.traffic && el("p", { class: "dim" }, whole ? `${percent(near / whole)} stays here` : "sends nothing"),
      column.nodes.filter((node) => shown.has(node)).map((node) => this.drawNode(column, node, onNodes.get(node.name) ?? [])),
      hidden > 0 ? el("p", { class: "dim" }, `and ${count(hidden, "more node", "more nodes")}`) : null,
    );
  }

  drawNode(column, node, endpoints) {
    const dots = endpoints.slice(0, MOST_DOTS).map((endpoint) => el("span", { class: `dot ${kindOf(endpoint)}`, title: titleOf(endpoint) }));
    const more = endpoints.length - dots.length;
    const described = this.traffic ? `, ${count(endpoints.length, "endpoint")}` : "";
    return el(
      "button",
      {
        class: node.isReady ? "node" : "node down",
        type: "button",
        "data-node": node.name,
        "aria-pressed": this.node === node.name ? "true" : "false",
        "aria-label": `node ${node.name}${node.isReady ? "" : ", not ready"}${described}`,
        onclick: () => {
          this.node = this.node === node.name ? null : node.name;
          for (const button of byId("zones").querySelectorAll(".node")) {
            button.setAttribute("aria-pressed", button.dataset.node === this.node ? "true" : "false");
          }
          this.showNode();
        },
      },
      node.isReady ? node.name : `${node.name} (not ready)`,
      this.traffic ? el("span", { class: "dots", "aria-hidden": true }, dots, more > 0 ? `+${more}` : null) : null,
    );
  }

  /** Say what the chosen node uses, and why. */
  showNode() {
    const box = byId("node");
    const column = this.columns.find(({ nodes }) => nodes.some((node) => node.name === this.node));
    const node = column?.nodes.find(({ name }) => name === this.node);
    if (!node || !this.traffic) {
      box.replaceChildren();
      return;
    }
    const group =
      this.traffic.groups.find((each) => each.node === node.name) ??
      this.traffic.groups.find((each) => !each.node && each.zone === column.zone && each.region === node.region);
    const shares = (group?.shares ?? []).map(([zone, share]) => `${nameOfZone(zone)} ${percent(share)}`);
    let uses = shares.length ? `sends to ${shares.join(", ")}` : "reaches no endpoint";
    if (!node.isReady) uses = "is not ready, so it counts for nothing";
    else if (!group) uses = "does not route this Service";
    box.replaceChildren(
      el("h3", {}, `Node ${node.name}`),
      el("p", {}, uses),
      el("ul", { class: "reasons" }, (group?.reasons ?? []).map((reason) => el("li", {}, reason))),
    );
  }

  drawArcs() {
    const canvas = byId("arcs");
    const frame = canvas.getBoundingClientRect();
    const centers = new Map();
    for (const [zone, head] of this.heads) {
      const column = head.parentElement.getBoundingClientRect();
      centers.set(zone, [column.left - frame.left + column.width / 2, column.width]);
    }
    const bottom = frame.height;
    const shapes = [];
    for (const [from, to, share] of this.arcs) {
      if (!centers.has(from) || !centers.has(to) || share <= 0) continue;
      const [start, width] = centers.get(from);
      const [end] = centers.get(to);
      shapes.push(...(from === to ? drawLoop(start, width, bottom, share) : drawArc(start, end, bottom, share)));
    }
    canvas.replaceChildren(...shapes.filter((shape) => shape.tagName !== "text"), ...shapes.filter((shape) => shape.tagName === "text"));
  }
}

function push(groups, key, value) {
  if (!groups.has(key)) groups.set(key, []);
  groups.get(key).push(value);
}

function sharesFrom(arcs, zone) {
  const shares = new Map();
  for (const [from, to, share] of arcs) {
    if (from === zone) shares.set(to, (shares.get(to) ?? 0) + share);
  }
  return shares;
}

function kindOf(endpoint) {
  if (endpoint.load > 0) return endpoint.near > 0.999 ? "near" : "far";
  return endpoint.isReady ? "idle" : "unready";
}

function titleOf(endpoint) {
  const state = endpoint.isTerminating ? "terminating" : endpoint.isReady ? "ready" : "not ready";
  const hints = endpoint.hints.length ? `hinted for ${endpoint.hints.join(", ")}` : "no hint";
  return `${endpoint.name} ${endpoint.address}: ${state}, ${hints}, ${percent(endpoint.load)} of the traffic`;
}

const thickness = (share) => 1 + THICKEST * Math.min(share, 1);

function label(x, y, share) {
  return share >= LEAST_LABELLED ? [svg("text", { x, y }, percent(share))] : [];
}

function drawLoop(x, width, bottom, share) {
  const half = Math.min(width / 4, 26);
  const wide = thickness(share);
  const path = `M${x - half} ${bottom - 2}C${x - half} ${bottom - 46} ${x + half} ${bottom - 46} ${x + half} ${bottom - 6}`;
  return [
    svg("path", { class: "near", d: path, "stroke-width": wide }),
    svg("path", { class: "near tip", d: tip(x + half, bottom, wide) }),
    ...label(x, bottom - 42, share),
  ];
}

function drawArc(start, end, bottom, share) {
  // Both directions between two zones are apart: to the right is the higher one.
  const isRight = end > start;
  const offset = isRight ? 6 : -6;
  const distance = Math.abs(end - start);
  const height = Math.min(bottom - 16, (isRight ? 62 : 48) + distance / 5);
  const [from, to] = [start + offset, end - offset - (isRight ? 8 : -8)];
  const top = bottom - height * 1.25;
  const wide = thickness(share);
  return [
    svg("path", {
      d: `M${from} ${bottom - 2}C${from} ${top} ${to} ${top} ${to} ${bottom - 6}`,
      "stroke-width": wide,
    }),
    svg("path", { class: "tip", d: tip(to, bottom, wide) }),
    ...label((from + to) / 2 + (isRight ? 14 : -14), bottom - height * 0.94 + 4, share),
  ];
}

function tip(x, bottom, wide) {
  const half = wide / 2 + 3;
  return `M${x - half} ${bottom - 8}L${x + half} ${bottom - 8}L${x} ${bottom}Z`;
}
