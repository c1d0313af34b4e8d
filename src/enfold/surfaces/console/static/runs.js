// Provenance: the runs that were recorded; and one of them as a graph with its parents, each with its verdict.

import { value } from "./api.js";
import { count, empty, failed, h, show, svg } from "./dom.js";
import { tree } from "./result.js";

const WIDE = 196, HIGH = 60, GAP_X = 28, GAP_Y = 46;

export async function runsPage(place, [runId]) {
  if (runId) { await oneRun(place, runId); return null; }
  const operation = h("input", { type: "search", placeholder: "Operation", "aria-label": "Only runs of an operation", onchange: load });
  const caller = h("input", { type: "search", placeholder: "Caller", "aria-label": "Only runs of a caller", onchange: load });
  const list = h("div");
  const told = h("p", { class: "dim small", role: "status" });
  async function load() {
    const asked = { limit: 200 };
    if (operation.value.trim()) asked.operation = operation.value.trim();
    if (caller.value.trim()) asked.caller = caller.value.trim();
    try {
      const runs = await value("enfold.runs", asked);
      told.textContent = `The last ${count(runs.length, "run")}`;
      show(list, runs.length ? table(runs) : empty("Nothing was recorded", "A call is recorded when its caller asks for it: choose “Record this run”, or send Enfold-Capture-Provenance."));
    } catch (error) {
      show(list, failed(error, load));
    }
  }
  show(place, h("div", { class: "heading" }, h("h1", {}, "Runs"), told), h("div", { class: "filters", role: "search" }, operation, caller), list);
  await load();
  return null;
}

function table(runs) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, h("table", {}, h("thead", {}, h("tr", {}, ["Time", "Operation", "Run", "Caller", "Parents"].map((each) => h("th", { scope: "col", class: each === "Parents" ? "number" : null }, each)))),
    h("tbody", {}, runs.map((run) => h("tr", {}, h("td", { class: "nowrap" }, run.time ? new Date(run.time).toLocaleString() : ""), h("td", { class: "id" }, run.operation),
      h("td", {}, h("a", { class: "id", href: `#/runs/${encodeURIComponent(run.run_id)}` }, run.run_id.slice(0, 13))), h("td", { dir: "auto" }, run.caller || ""), h("td", { class: "number" }, run.parents.length || ""))))));
}

async function oneRun(place, runId) {
  const lineage = await value("enfold.lineage", { run_id: runId });
  const own = lineage.nodes.find((each) => each.run.run_id === runId) || { run: { operation: "Run" }, faults: [], notes: [] };
  show(place, h("p", { class: "crumbs" }, h("a", { href: "#/runs" }, "Runs")),
    h("div", { class: "heading" }, h("h1", { class: "id" }, own.run.operation), h("span", { class: `state ${lineage.verified ? "up" : "down"}` }, lineage.verified ? "verified" : "not verified")),
    h("p", { class: "dim small id" }, runId),
    [...lineage.faults, ...own.faults].map((each) => h("p", { class: "why", dir: "auto" }, each)),
    [...new Set([...lineage.notes, ...own.notes])].slice(0, 10).map((each) => h("p", { class: "dim small", dir: "auto" }, each)),
    lineage.nodes.length > 0 && [graph(lineage, runId), h("h2", {}, "Record"), tree(lineage.record).element]);
}

// Parents stand above their children; a run that the store lacks is drawn as missing.
function graph(lineage, current) {
  const known = new Map(lineage.nodes.map((each) => [each.run.run_id, each]));
  const parents = (id) => known.get(id)?.run.parents || [];
  const ids = [...new Set([...known.keys(), ...[...known.keys()].flatMap(parents)])];
  const level = new Map();
  for (let pass = 0, changed = true; changed && pass <= ids.length; pass++) {
    changed = false;
    for (const id of ids) {
      const found = Math.max(-1, ...parents(id).map((each) => level.get(each) ?? 0)) + 1;
      if (level.get(id) !== found) { level.set(id, found); changed = true; }
    }
  }
  const rows = [];
  for (const id of ids) (rows[level.get(id)] ||= []).push(id);
  const most = Math.max(...rows.map((row) => row.length));
  const width = most * (WIDE + GAP_X) + GAP_X, height = rows.length * (HIGH + GAP_Y) + GAP_Y / 2;
  const spot = new Map();
  rows.forEach((row, line) => row.forEach((id, place) => spot.set(id, [(width - row.length * (WIDE + GAP_X) + GAP_X) / 2 + place * (WIDE + GAP_X), line * (HIGH + GAP_Y) + GAP_Y / 4])));
  const edges = ids.flatMap((id) => parents(id).map((each) => {
    const [x1, y1] = spot.get(each), [x2, y2] = spot.get(id), from = [x1 + WIDE / 2, y1 + HIGH], to = [x2 + WIDE / 2, y2];
    return svg("path", { class: "edge", d: `M${from} C${from[0]},${from[1] + GAP_Y / 2} ${to[0]},${to[1] - GAP_Y / 2} ${to}` });
  }));
  const boxes = ids.map((id) => {
    const node = known.get(id), [x, y] = spot.get(id);
    const verdict = node ? (node.verified ? "verified" : "not verified") : "not in the store";
    const name = node?.run.operation || "missing";
    const box = svg("g", { class: `box ${node ? (node.verified ? "good" : "bad") : "gone"} ${id === current ? "current" : ""}` },
      svg("rect", { x, y, width: WIDE, height: HIGH, rx: 10 }),
      svg("text", { x: x + 12, y: y + 22, class: "name" }, cut(name, 24)),
      svg("text", { x: x + 12, y: y + 38, class: "small" }, id.slice(0, 13)),
      svg("text", { x: x + 12, y: y + 52, class: "small verdict" }, verdict));
    return node ? svg("a", { href: `#/runs/${encodeURIComponent(id)}`, "aria-label": `${name}, run ${id.slice(0, 13)}, ${verdict}`, "aria-current": id === current ? "true" : null }, box) : box;
  });
  const drawing = svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Lineage of ${count(ids.length, "run")}` }, edges, boxes);
  return h("div", { class: "scroll graphs", tabindex: "0", role: "region", "aria-label": "Lineage" }, drawing);
}

const cut = (text, most) => (text.length > most ? `…${text.slice(text.length - most + 1)}` : text);
