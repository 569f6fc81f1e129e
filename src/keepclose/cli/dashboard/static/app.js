// The state of the page, and what follows from each message of the server.

import { byId, el, setText } from "./dom.js";
import { ask, follow, send, takeToken } from "./server.js";
import { ServiceList } from "./service_list.js";
import { ServicePageView } from "./service_page.js";
import { clock, count, markOfState } from "./words.js";
import { ZoneMap } from "./zone_map.js";

const state = {
  services: new Map(),
  flows: new Map(),
  status: null,
  chosen: null,
  page: null,
  pageError: "",
  wanted: "",
  preview: null,
  previewError: "",
  notice: "",
  isMeasured: false,
  isLost: "",
  isOpened: false,
};
const map = new ZoneMap();
const list = new ServiceList(choose);
const view = new ServicePageView({ onPreview: preview, onApply: apply });
let asked = null;

const split = (key) => {
  const [namespace, name] = key.split("/");
  return { namespace, name };
};

function choose(key) {
  if (state.chosen !== key) Object.assign(state, { page: null, pageError: "", wanted: "", preview: null, previewError: "", notice: "" });
  state.chosen = key;
  history.replaceState(null, "", `#${encodeURIComponent(key)}`);
  draw();
  refresh();
}

/** Ask for the page of the chosen Service again, and for its preview; the latest question counts. */
async function refresh() {
  const key = state.chosen;
  if (key === null) return;
  asked?.abort();
  const request = new AbortController();
  asked = request;
  if (state.services.size && !state.services.has(key)) {
    Object.assign(state, { page: null, preview: null, pageError: "There is no such Service any more." });
    draw();
    return;
  }
  const answers = { page: null, pageError: "", preview: null, previewError: "" };
  try {
    const page = ask("/api/service", split(key), request.signal);
    const trial = state.wanted ? ask("/api/preview", { ...split(key), mechanism: state.wanted }, request.signal) : null;
    trial?.catch(() => {});
    answers.page = await page;
    try {
      answers.preview = await trial;
    } catch (error) {
      if (request.signal.aborted) return;
      answers.previewError = error.message;
    }
  } catch (error) {
    if (request.signal.aborted) return;
    answers.pageError = error.message;
  }
  if (request.signal.aborted) return;
  Object.assign(state, answers);
  draw();
}

function preview(mechanism) {
  Object.assign(state, { wanted: mechanism, preview: null, previewError: "", notice: "" });
  draw();
  refresh();
}

async function apply(wanted) {
  const { namespace, name } = split(state.chosen);
  try {
    await send("/api/mechanism", { namespace, name, mechanism: wanted.mechanism, resourceVersion: wanted.resourceVersion });
    Object.assign(state, { wanted: "", preview: null, notice: `Applied: ${wanted.mechanism}.` });
  } catch (error) {
    state.notice = `Not applied: ${error.message}`;
  }
  draw();
  refresh();
}

function draw() {
  const key = state.chosen;
  const row = key === null ? null : state.services.get(key)?.row;
  const flows = state.flows.get(key) ?? null;
  byId("source").hidden = !flows;
  const isMeasured = Boolean(flows) && state.isMeasured && !state.preview;
  const traffic = state.preview?.traffic ?? state.page?.traffic ?? null;
  let arcs = traffic?.arcs ?? row?.arcs ?? [];
  if (isMeasured) arcs = asArcs(flows);
  let note = "Choose a Service to see where its traffic goes.";
  if (key !== null) {
    const name = row ? `${row.namespace}/${row.name}` : "This Service";
    note = `${name}: what the slices let each node use, each node alike`;
    if (state.preview) note = `${name}: preview of ${state.preview.mechanism}; nothing is written`;
    else if (isMeasured) note = `${name}: connections that agents count`;
  }
  map.show(traffic, arcs, { isPreview: Boolean(state.preview), note });
  if (key === null) view.showNothing();
  else if (state.pageError) view.showError(row ? `${row.namespace}/${row.name}` : "The Service", state.pageError);
  else if (state.page) {
    view.show({
      ...state,
      flows,
      canWrite: state.status?.allowsWrites ?? false,
      cluster: state.status?.cluster ?? "",
    });
  }
}

function asArcs(flows) {
  const whole = flows.reduce((sum, [, , connections]) => sum + connections, 0);
  return flows.map(([from, to, connections]) => [from, to, whole ? connections / whole : 0]);
}

function drawStatus() {
  const status = state.status;
  setText(byId("cluster"), status ? `${status.cluster}${status.allowsWrites ? ", may be changed here" : ", read-only"}` : "");
  const problem = state.isLost || status?.problem || "";
  byId("status").classList.toggle("problem", problem !== "");
  let text = "live";
  if (problem) text = `not live: ${problem}`;
  else if (!status?.isComplete) text = "reading the cluster";
  setText(byId("status"), text);
}

function drawEvents(events) {
  byId("event-list").replaceChildren(
    ...events.map((event) =>
      el(
        "li",
        {},
        el("time", { class: "dim" }, clock(event.at)),
        el("span", { class: event.isWarning ? "warn" : null }, `${event.isWarning ? "Warning " : ""}${event.reason}${event.count > 1 ? ` (${count(event.count, "time")})` : ""}`),
        el("span", {}, el("span", { class: "dim" }, `${event.about} `), event.message),
      ),
    ),
    ...(events.length ? [] : [el("li", {}, el("span", { class: "dim" }, "none"))]),
  );
}

function onMessage(message) {
  const { services, zones, events, flows, status } = message;
  if (status) {
    state.status = status[""];
    drawStatus();
  }
  if (zones) map.setZones(zones[""] ?? []);
  if (events) drawEvents(events[""] ?? []);
  for (const [key, value] of Object.entries(flows ?? {})) {
    if (value === null) state.flows.delete(key);
    else state.flows.set(key, value);
  }
  for (const [key, value] of Object.entries(services ?? {})) {
    if (value === null) state.services.delete(key);
    else state.services.set(key, value);
  }
  if (services) {
    list.update(services);
    if (state.chosen !== null && list.chosen !== state.chosen && state.services.has(state.chosen)) list.mark(state.chosen);
  }
  // The first message of a stream has all Services: the chosen one may be gone since the last.
  const isFirst = state.isOpened && Boolean(services);
  if (isFirst) state.isOpened = false;
  const isTouched = state.chosen !== null && (isFirst || zones || state.chosen in (services ?? {}));
  if (isTouched) {
    const row = state.services.get(state.chosen)?.row;
    if (row) document.title = `${markOfState(row.state)} ${row.namespace}/${row.name} – keepclose`;
    refresh();
  } else if (flows && state.chosen in flows) draw();
}

function onOpen() {
  // A new stream begins with all values; what is gone meanwhile is in none of them.
  state.services.clear();
  state.flows.clear();
  list.clear();
  state.isLost = "";
  state.isOpened = true;
  drawStatus();
}

function onLost(why) {
  state.isLost = why;
  drawStatus();
}

const hasToken = takeToken();
if (location.hash.includes("%2F")) state.chosen = decodeURIComponent(location.hash.slice(1));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    event.preventDefault();
    byId("filter").focus();
  }
});
for (const input of document.querySelectorAll("input[name=source]")) {
  input.addEventListener("change", (event) => {
    state.isMeasured = event.target.value === "measured";
    draw();
  });
}
draw();
if (hasToken) follow(onOpen, onMessage, onLost);
else onLost("the URL has no token; open the one that keepclose dashboard printed");
