// Provenance: the runs that were recorded; and one of them as a graph with its parents, each with its verdict.

import { value } from "./api.js";
import { address, bring, button, capital, chip, count, empty, failed, filters, h, heading, note, plainly, searchbox, select, shortened, show, status, table, TIMES, to, when } from "./dom.js";
import { svg } from "./chart.js";
import { tree } from "./result.js";

const MOST = 300, PAGE = 200;
const COLUMNS = [["Time"], ["Operation"], ["Result"], ["Caller"], ["Record"], ["Run"]];

export async function runsPage(place, [runId], state) {
  if (runId) return oneRun(place, runId);
  const box = (name) => searchbox(`Only runs of a${name === "Caller" ? "" : "n"} ${name.toLowerCase()}`, name, state.query.get(name.toLowerCase()), load, true);
  const operation = box("Operation"), caller = box("Caller");
  const since = select("Filter by time", TIMES, state.query.get("since"), load);
  const told = status();
  const body = h("tbody"), list = h("div"), beside = h("div.beside", { "aria-live": "polite" }), more = button("Show more", () => grow(), "more");
  let runs = [], drawn = null;
  async function grow() {
    const asked = { limit: PAGE }, chosen = { matching: operation.value.trim(), caller: caller.value.trim(), since: since.value && Date.now() - Number(since.value), until: runs.length && Date.parse(runs.at(-1).time) + 1 };
    for (const [name, wanted] of Object.entries(chosen)) if (wanted) asked[name] = wanted;
    try {
      const found = await value("enfold.runs", asked), known = new Set(runs.map((each) => each.run_id));
      runs.push(...found.filter((each) => !known.has(each.run_id)));
      more.hidden = found.length < PAGE;
      told.textContent = runs.length ? `The last ${count(runs.length, "run")}` : "";
      show(body, runs.map((run) => row(run, async () => { await draw(run); bring(beside); })));
      if (runs.length) draw(runs.find((each) => each.run_id === drawn) || runs[0]);
      show(list, runs.length ? table("Runs", COLUMNS, body, "log") : asked.matching || asked.caller || asked.since ? empty("No matching runs", "Try fewer words, or a longer period.") : empty("No recorded runs", "Calls are recorded on request: choose “Record this run”, or send Enfold-Capture-Provenance."), more);
    } catch (error) {
      show(list, failed(error, load));
    }
  }
  // The lineage of the run that was chosen, beside the list.
  async function draw(run) {
    if (drawn === run.run_id) return;
    drawn = run.run_id;
    const lineage = await value("enfold.lineage", { run_id: run.run_id }).catch((error) => error);
    if (drawn !== run.run_id) return;
    show(beside, h("h2", "Lineage of ", to("runs", run.run_id, run.operation, "id")), lineage.nodes ? graph(lineage, run.run_id, true) : failed(lineage));
    for (const each of body.children) each.classList.toggle("chosen", each.dataset.run === drawn);
  }
  function load(event) {
    if (event?.type === "change") address("runs", { operation: operation.value, caller: caller.value, since: since.value });
    runs = [];
    return grow();
  }
  show(place, heading("Runs", told), filters(operation, caller, since), h("div.split", list, beside));
  await load();
  return {};
}

const row = (run, draw) => h("tr", { "data-run": run.run_id }, h("td", run.time && when(Date.parse(run.time))), h("td", button(run.operation, draw, "link id")), h("td", run.outputs ? chip("succeeded", "good") : run.methods.length ? chip("failed", "bad") : chip("unknown")),
  h("td", run.caller || "anonymous"), h("td", h("span", { title: run.faults.join(" ") }, chip(...verdict(run)))), h("td", to("runs", run.run_id, run.run_id.slice(0, 8), "id")));

// An unsigned record is intact, and no more: anyone who can change it can also recompute its digest.
function verdict(run, isVerified = run.verified) {
  const isSigned = run.methods?.includes("integrity.signature.create");
  return isVerified ? [isSigned ? "intact, signed" : "intact, unsigned", isSigned ? "good" : ""] : ["not verified", "bad"];
}

async function oneRun(place, runId) {
  const lineage = await value("enfold.lineage", { run_id: runId });
  const own = lineage.nodes.find((each) => each.run.run_id === runId) || { run: { operation: "Run" }, faults: [], notes: [] };
  show(place, h("p.crumbs", h("a", { href: "#/runs" }, "Runs")),
    h("div.heading", h("h1.id", own.run.operation), chip(...verdict(own.run, lineage.verified))),
    h("p.dim.small.id", runId),
    [...lineage.faults, ...own.faults].map((each) => h("p.why", each)),
    [...new Set([...lineage.notes, ...own.notes])].slice(0, 10).map((each) => note(capital(each))),
    lineage.nodes.length > 0 && [graph(lineage, runId), h("h2", "Record"), tree(lineage.record).element]);
  return {};
}

// Layers of runs: each stands behind its parents, and runs with the same parents below each other; where there is little
// room, as an outline with one run to a line. A run that the store lacks is drawn as missing.
const WIDE = 212, HIGH = 58, GAP = 46, BESIDE = 20, INDENT = 22;
function graph(lineage, current, isOutline = false) {
  const known = new Map(lineage.nodes.slice(0, MOST).map((each) => [each.run.run_id, each])); // the nearest come first
  const undrawn = new Set(lineage.nodes.slice(MOST).map((each) => each.run.run_id));
  const parents = (id) => (known.get(id)?.run.parents || []).filter((each) => !undrawn.has(each));
  const ids = [...new Set([...known.keys(), ...[...known.keys()].flatMap(parents)])], depths = new Map();
  const depth = (id, above = new Set()) => {
    if (depths.has(id)) return depths.get(id);
    if (above.has(id)) return 0; // where runs are parents of each other
    const found = Math.max(-1, ...parents(id).map((each) => depth(each, new Set([...above, id])))) + 1;
    depths.set(id, found);
    return found;
  };
  const places = new Map(), layers = [];
  const enter = (id) => {
    if (places.has(id)) return;
    places.set(id, [depth(id) * INDENT + 2, places.size * (HIGH + BESIDE / 2) + 2]);
    ids.filter((each) => parents(each).includes(id)).forEach(enter);
  };
  if (isOutline) ids.toSorted((one, other) => depth(one) - depth(other)).forEach(enter);
  else for (const id of ids) places.set(id, [depth(id) * (WIDE + GAP) + 2, ((layers[depth(id)] ||= []).push(id) - 1) * (HIGH + BESIDE) + 2]);
  const line = (from, to) => {
    const [[x, y], [a, b]] = [places.get(from), places.get(to)], middle = HIGH / 2;
    return svg("path", { class: "edge", d: isOutline ? `M${x + INDENT / 2} ${y + HIGH}V${b + middle}H${a}` : `M${x + WIDE} ${y + middle}C${x + WIDE + GAP / 2} ${y + middle} ${a - GAP / 2} ${b + middle} ${a} ${b + middle}` });
  };
  const box = (id) => {
    const node = known.get(id), [x, y] = places.get(id), [words, kind] = node ? verdict(node.run, node.verified) : ["not in the store", "gone"];
    const name = node?.run.operation || "missing", text = (at, content, kind) => svg("text", { x: x + 12, y: y + at, class: kind }, plainly(shortened(content, 28)));
    return svg(node ? "a" : "g", { class: `node ${kind}`, href: node && `#/runs/${encodeURIComponent(id)}`, "aria-current": id === current && "true" },
      svg("rect", { x, y, width: WIDE, height: HIGH, rx: 9 }), text(24, name, "name"), text(44, `${id.slice(0, 8)} · ${words}`, "dim"));
  };
  const [width, height] = [WIDE, HIGH].map((size, axis) => Math.max(...[...places.values()].map((each) => each[axis])) + size + 2);
  const region = h("div.scroll.graphs", { tabindex: "0", role: "region", "aria-label": `Lineage of ${count(ids.length, "run")}` },
    svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}` }, ids.flatMap((id) => parents(id).map((each) => line(each, id))), ids.map(box)));
  requestAnimationFrame(() => { // of a large graph the run that was opened is in view
    const [x, y] = places.get(current) || [0, 0];
    region.scrollTo(x - region.clientWidth / 3, y - region.clientHeight / 3);
  });
  return [undrawn.size > 0 && note(`Of ${count(lineage.nodes.length, "run")} the nearest ${MOST} are drawn.`), region];
}
