// Where the operations come from, and how each source is; it changes while one looks.

import { follow } from "./api.js";
import { chip, count, empty, failed, h, heading, long, pairs, show, status, when } from "./dom.js";

const KINDS = { down: "bad", starting: "warn", up: "good" }; // in the order in which they want to be looked at

export function sourcesPage(place) {
  const told = status("Asking…");
  const trouble = h("div"), list = h("div.cards");
  show(place, heading("Sources", told), trouble, list);
  const opened = new Set(), rank = (each) => Object.keys(KINDS).indexOf(each.state);
  return { ended: follow("enfold.sources.watch", {}, (sources) => {
    const down = sources.filter((each) => each.state !== "up").length;
    told.textContent = `${count(sources.length, "source")}, ${down ? `${down} not` : "all"} up`;
    show(list, sources.length ? sources.sort((one, other) => rank(one) - rank(other)).map((each) => card(each, opened)) : empty("No sources", "Operations were registered by the program itself."));
  }, (error) => {
    list.classList.toggle("stale", Boolean(error)); // as it was when the server was last heard of
    if (error) told.textContent = list.children.length ? "Not connected: last known state" : "Not connected";
    show(trouble, error && failed(error));
  }) };
}

function card(source, opened) {
  const skipped = source.skipped.length > 0 && h("details", { open: opened.has(source.name), ontoggle(event) { opened[event.target.open ? "add" : "delete"](source.name); } },
    h("summary", `${count(source.skipped.length, "operation")} skipped`), pairs(source.skipped.slice(0, 200).map((each) => [each.where, each.why]), "pairs"));
  const changed = source.changed?.length > 0 && h("details", { open: opened.has(`${source.name} changed`), ontoggle(event) { opened[event.target.open ? "add" : "delete"](`${source.name} changed`); } },
    h("summary", `${count(source.changes, "definition")} changed`), pairs(source.changed.map((each) => [each.where, each.why]), "pairs"));
  return h("article", { class: `card ${source.state}`, "aria-label": source.name },
    h("div.bar", h("h2", source.name), source.changed?.length > 0 && chip("changed", "warn"), chip(source.state, KINDS[source.state])),
    source.why && h(source.state === "down" ? "p.why" : "p.dim.small", source.why),
    pairs([["Kind", source.kind + (source.required ? " · required" : "")], ["Operations", long(source.operations)],
      ["Cost for a model", source.tokens > 0 ? `≈ ${long(source.tokens)} tokens` : ""], [`${source.state[0].toUpperCase()}${source.state.slice(1)} since`, source.since && when(source.since)]], "facts"),
    changed, skipped);
}
