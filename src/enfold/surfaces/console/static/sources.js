// Where the operations come from, and how each source is; it changes while one looks.

import { follow } from "./api.js";
import { count, empty, failed, h, show, when } from "./dom.js";

export function sourcesPage(place) {
  const told = h("p", { class: "dim small", role: "status" }, "Asking…");
  const list = h("div", { class: "cards" });
  show(place, h("div", { class: "heading" }, h("h1", {}, "Sources"), told), list);
  const opened = new Set();
  return follow("enfold.sources.watch", {}, (sources) => {
    const down = sources.filter((each) => each.state !== "up").length;
    told.textContent = down ? `${count(sources.length, "source")}, ${down} not up` : `${count(sources.length, "source")}, all up`;
    show(list, sources.length ? sources.map((each) => card(each, opened)) : empty("There are no sources", "The operations were registered by the program itself."));
  }, (error) => { if (error) { told.textContent = "Not connected"; if (!list.children.length) show(list, failed(error)); } });
}

function card(source, opened) {
  const skipped = source.skipped.length > 0 && h("details", { open: opened.has(source.name), ontoggle(event) { opened[event.target.open ? "add" : "delete"](source.name); } },
    h("summary", {}, `${count(source.skipped.length, "operation")} skipped`),
    h("dl", { class: "pairs" }, source.skipped.slice(0, 200).map((each) => [h("dt", {}, each.where), h("dd", { dir: "auto" }, each.why)])));
  return h("article", { class: `card ${source.state}`, "aria-label": source.name },
    h("div", { class: "bar" }, h("h2", { dir: "auto" }, source.name), h("span", { class: `state ${source.state}` }, source.state)),
    source.why && h("p", { class: "why", dir: "auto" }, source.why),
    h("dl", { class: "facts" },
      h("dt", {}, "Kind"), h("dd", {}, source.kind, source.required && " · required"),
      h("dt", {}, "Operations"), h("dd", {}, source.operations.toLocaleString("en")),
      source.tokens > 0 && [h("dt", {}, "Cost for a model"), h("dd", {}, `≈ ${source.tokens.toLocaleString("en")} tokens`)],
      source.since && [h("dt", {}, `${source.state === "up" ? "Up" : source.state === "down" ? "Down" : "Starting"} since`), h("dd", {}, when(source.since))]),
    skipped);
}
