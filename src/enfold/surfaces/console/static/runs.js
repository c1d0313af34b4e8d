// Provenance: the runs that were recorded; and one of them as a graph with its parents, each with its verdict.

import { value } from "./api.js";
import { address, button, chip, count, empty, failed, filters, h, heading, note, searchbox, show, status, table, to, when } from "./dom.js";
import { tree } from "./result.js";

const MOST = 300, PAGE = 200;
const TIMES = [["", "At any time"], ["3600000", "In the last hour"], ["86400000", "In the last day"], ["604800000", "In the last week"]];
const COLUMNS = [["Time"], ["Operation"], ["Run"], ["Caller"], ["Result"], ["Record"], ["Parents", true]];

export async function runsPage(place, [runId], state) {
  if (runId) return oneRun(place, runId);
  const box = (name) => searchbox(`Only runs of a${name === "Caller" ? "" : "n"} ${name.toLowerCase()}`, name, state.query.get(name.toLowerCase()), load, true);
  const operation = box("Operation"), caller = box("Caller");
  const since = h("select", { "aria-label": "Filter by time", onchange: load }, TIMES.map(([ms, words]) => h("option", { value: ms, selected: ms === state.query.get("since") }, words)));
  const told = status();
  const body = h("tbody"), list = h("div"), more = button("Show more", () => grow(), "more");
  let runs = [];
  async function grow() {
    const asked = { limit: PAGE }, chosen = { matching: operation.value.trim(), caller: caller.value.trim(), since: since.value && Date.now() - Number(since.value), until: runs.length && Date.parse(runs.at(-1).time) + 1 };
    for (const [name, wanted] of Object.entries(chosen)) if (wanted) asked[name] = wanted;
    try {
      const found = await value("enfold.runs", asked), known = new Set(runs.map((each) => each.run_id));
      runs.push(...found.filter((each) => !known.has(each.run_id)));
      more.hidden = found.length < PAGE;
      told.textContent = `The last ${count(runs.length, "run")}`;
      show(body, runs.map(row));
      show(list, runs.length ? table("Runs", COLUMNS, body, "log") : asked.matching || asked.caller || asked.since ? empty("No matching runs", "Try fewer words, or a longer period.") : empty("No recorded runs", "Calls are recorded on request: choose “Record this run”, or send Enfold-Capture-Provenance."), more);
    } catch (error) {
      show(list, failed(error, load));
    }
  }
  function load(event) {
    if (event?.type === "change") address("runs", { operation: operation.value, caller: caller.value, since: since.value });
    runs = [];
    return grow();
  }
  show(place, heading("Runs", told), filters(operation, caller, since), list);
  await load();
  return {};
}

const row = (run) => h("tr", h("td", run.time && when(Date.parse(run.time))), h("td.id", run.operation), h("td", to("runs", run.run_id, run.run_id.slice(0, 13), "id")),
  h("td", run.caller || ""), h("td", run.outputs ? "succeeded" : "failed"), h("td", h("span", { title: run.faults.join(" ") }, chip(...verdict(run)))), h("td.end", run.parents.length || ""));

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
    [...new Set([...lineage.notes, ...own.notes])].slice(0, 10).map((each) => h("p.dim.small", each)),
    lineage.nodes.length > 0 && [graph(lineage, runId), h("h2", "Record"), tree(lineage.record).element]);
  return {};
}

// Each run hangs below its parents; a run that the store lacks is drawn as missing, and one that was drawn is not followed again.
function graph(lineage, current) {
  const known = new Map(lineage.nodes.slice(0, MOST).map((each) => [each.run.run_id, each])); // the nearest come first
  const undrawn = new Set(lineage.nodes.slice(MOST).map((each) => each.run.run_id));
  const parents = (id) => (known.get(id)?.run.parents || []).filter((each) => !undrawn.has(each));
  const ids = [...new Set([...known.keys(), ...[...known.keys()].flatMap(parents)])], drawn = new Set();
  const hang = (id) => {
    const below = drawn.has(id) ? [] : ids.filter((each) => parents(each).includes(id));
    drawn.add(id);
    return h("li", box(id), below.length > 0 && h("ul", below.map(hang)));
  };
  const box = (id) => {
    const node = known.get(id), [words, kind] = node ? verdict(node.run, node.verified) : ["not in the store", "gone"];
    return h(node ? "a" : "div", { class: `box ${kind}`, href: node && `#/runs/${encodeURIComponent(id)}`, "aria-current": id === current && "true" }, h("strong.id", node?.run.operation || "missing"), note(id.slice(0, 13)), h("p.small", words));
  };
  const roots = ids.filter((id) => !parents(id).length).map(hang);
  const region = h("div.scroll.graphs", { tabindex: "0", role: "region", "aria-label": `Lineage of ${count(ids.length, "run")}` },
    h("ul.graph", roots, ids.filter((id) => !drawn.has(id)).map((id) => !drawn.has(id) && hang(id)))); // where runs are parents of each other
  requestAnimationFrame(() => { // of a large graph the run that was opened is in view
    const [one, own] = [region.querySelector("[aria-current]") || region, region].map((each) => each.getBoundingClientRect());
    region.scrollTo(one.x - own.x - own.width / 3, one.y - own.y - own.height / 3);
  });
  return [undrawn.size > 0 && note(`Of ${count(lineage.nodes.length, "run")} the nearest ${MOST} are drawn.`), region];
}
