// Where the operations come from: the state of each source over time, what it offers, and what it has changed. It updates live.

import { follow, value } from "./api.js";
import { strip } from "./chart.js";
import { button, capital, chip, count, empty, failed, h, heading, long, moment, note, pairs, show, status, to, when } from "./dom.js";
import { parse, write } from "./json.js";

const KINDS = { down: "bad", starting: "warn", up: "good" }; // in the order in which they want to be looked at
const GROUPS = [["tool", "operation"], ["resource", "resource"], ["prompt", "prompt"]];
const MOST = 300;

export function sourcesPage(place, [only], state) {
  const told = status("Asking…"), trouble = h("div"), list = h("div", { class: only ? "" : "cards" });
  show(place, only && h("p.crumbs", h("a", { href: "#/sources" }, "Sources")), heading(only || "Sources", told), trouble, list);
  const opened = new Set(only ? ["operation", "resource", "prompt", "changed", "errors"].map((each) => `${only} ${each}`) : []), rank = (each) => Object.keys(KINDS).indexOf(each.state);
  let last = [];
  async function reconnect(name, pressed) {
    pressed.disabled = true;
    pressed.textContent = "Connecting…";
    try {
      await value("enfold.sources.reconnect", { name });
    } catch (error) {
      show(trouble, failed(error));
    }
    draw();
  }
  function draw() {
    const shown = last.filter((each) => !only || each.name === only), down = shown.filter((each) => each.state !== "up").length;
    told.textContent = only ? shown[0]?.kind || "" : `${count(shown.length, "source")}, ${down ? `${down} not` : "all"} up`;
    show(list, shown.length ? shown.sort((one, other) => rank(one) - rank(other)).map((each) => card(each, opened, state, reconnect, only)) : empty(only ? "Source not found" : "No sources", only ? "There is no source of this name. It may have been removed." : "Operations were registered by the program itself."));
  }
  return { changed: draw, ended: follow("enfold.sources.watch", {}, (sources) => { last = sources; draw(); }, (error) => {
    list.classList.toggle("stale", Boolean(error)); // as it was when the server was last heard of
    if (error) told.textContent = list.children.length ? "Not connected: last known state" : "Not connected";
    show(trouble, error && failed(error));
  }) };
}

function card(source, opened, state, reconnect, only) {
  const part = (name, words, ...content) => h("details", { open: opened.has(`${source.name} ${name}`), ontoggle(event) { opened[event.target.open ? "add" : "delete"](`${source.name} ${name}`); } }, h("summary", words), content);
  const offered = state.operations.filter((each) => each.source === source.name);
  const errors = source.history.filter((each) => each.why).reverse();
  const { history } = source, falls = history.filter((each) => each.state === "down").length;
  const parts = history.map((each) => [each.time, KINDS[each.state]]), lately = falls ? `down ${count(falls, "time")}` : "never down";
  return h("article", { class: `card ${source.state}`, "aria-label": source.name },
    h("div.bar", h("h2", only ? "State" : to("sources", source.name)), h("span", source.changed.length > 0 && [chip("changed", "warn"), " "], chip(source.state, KINDS[source.state]))),
    source.why && h(source.state === "down" ? "p.why" : "p.dim.small", source.why),
    parts.length > 0 && h("figure", strip(`State since ${moment(history[0].time)}: ${lately}`, parts, Date.now()), h("figcaption.bar.dim.small", h("span", "from ", when(history[0].time)), lately, h("span", "now"))),
    pairs([["Kind", source.kind + (source.required ? " · required" : "")], ["Operations", long(source.operations)],
      ["Cost for a model", source.tokens > 0 ? `≈ ${long(source.tokens)} tokens` : ""], [`${capital(source.state)} since`, source.since && moment(source.since)]], "facts"),
    GROUPS.map(([kind, word]) => {
      const found = offered.filter((each) => (["resource", "prompt"].includes(each.mcp) ? each.mcp : "tool") === kind);
      return found.length > 0 && part(word, count(found.length, word), h("ul.plain", found.slice(0, MOST).map((each) => h("li", to("operations", each.id, each.id, "id"), each.title && h("span.dim", ` ${each.title}`)))), found.length > MOST && note(`and ${found.length - MOST} more`));
    }),
    errors.length > 0 && part("errors", errors.length === 1 ? "Last error" : `Last ${errors.length} errors`, h("ul.plain", errors.slice(0, 10).map((each) => h("li", h("span.dim.small", moment(each.time)), " ", each.why)))),
    source.changed.length > 0 && part("changed", `${count(source.changes, "definition")} changed`, source.changed.map((each) => h("section.change", h("h3", each.where), note(each.why, each.time > 0 ? `, ${moment(each.time)}` : ""),
      (each.before || each.after) && h("div.sides", [["Before", each.before || "Not kept", each.after], ["After", each.after, each.before]].map(([name, text, other]) => h("section", h("h3", name), definition(text, other))))))),
    source.skipped.length > 0 && part("skipped", `${count(source.skipped.length, "operation")} skipped`, pairs(source.skipped.slice(0, 200).map((each) => [each.where, each.why]), "pairs")),
    source.can_reconnect && state.own.has("enfold.sources.reconnect") && h("div.row", button("Reconnect", ({ target }) => reconnect(source.name, target))));
}

// The parts of a definition, a line of JSON for each, as text to read; what the other one does not have is marked.
function definition(text, other) {
  const others = new Set(readable(other).split("\n"));
  return h("pre.raw", { tabindex: "0" }, readable(text).split("\n").map((line, place) => [place > 0 && "\n", others.has(line) ? line : h("mark", line)]));
}

function readable(text) {
  return text.split("\n").map((line) => {
    try {
      const part = parse(line), isText = Array.isArray(part) && part.every((each) => each === null || typeof each === "string");
      return isText ? part.filter(Boolean).join("\n") : write(part, 2);
    } catch {
      return line; // which was cut
    }
  }).join("\n");
}
