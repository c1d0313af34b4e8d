// The server at a glance: what it serves, where and to whom, how its sources are, and what has happened lately.

import { base, follow, value } from "./api.js";
import { outcome } from "./calls.js";
import { bars, tile } from "./chart.js";
import { chip, copyButton, count, failed, h, heading, long, note, pairs, show, to, took } from "./dom.js";

const MINUTES = 30, MINUTE = 60_000, EVERY = 5000, MOST = 5000, MOST_OPEN = 20;

export async function overviewPage(place, rest, state) {
  const tiles = h("div.tiles"), sources = h("section"), trouble = h("div");
  const calls = [], ends = [], reaches = state.own;
  const places = { operations: h("div"), sources: h("div"), questions: h("div"), calls: h("div"), failures: h("div"), latency: h("div") };
  show(place, heading(state.title || "Overview", state.about && chip(`Enfold ${state.about.version}`)), trouble, tiles, h("div.sides.wide", reaches.has("enfold.sources.watch") && sources, h("section", h("h2", "Addresses"), addresses(state.about)), h("section", h("h2", "Who is calling"), caller(state)), h("section", h("h2", "Open to anonymous callers"), anonymous(state))));
  show(tiles, places.operations, reaches.has("enfold.sources.watch") && places.sources, reaches.has("enfold.tasks.list") && state.about?.caller && places.questions, reaches.has("enfold.calls") && [places.calls, places.failures, places.latency]);
  const changed = () => show(places.operations, tile("Operations", h("a", { href: "#/operations" }, long(state.operations.length)), kinds(state.operations)));
  changed();
  if (reaches.has("enfold.sources.watch")) ends.push(follow("enfold.sources.watch", {}, (found) => {
    const down = found.filter((each) => each.state !== "up");
    show(places.sources, tile("Sources up", h("a", { href: "#/sources", class: down.length ? "bad" : null }, `${found.length - down.length} of ${found.length}`), down.length ? `${down.map((each) => each.name).slice(0, 3).join(", ")} not up` : "All are up"));
    show(sources, h("h2", "Sources"), h("ul.plain", [...down, ...found.filter((each) => each.state === "up")].slice(0, 50).map((each) => h("li", chip(each.state, { up: "good", down: "bad" }[each.state] || "warn"), " ", to("sources", each.name), h("span.dim", ` ${each.kind}, ${count(each.operations, "operation")}`), each.why && h("p.why", each.why)))));
  }, (error) => show(trouble, error && failed(error))));
  if (reaches.has("enfold.calls")) {
    let isDue = false;
    const later = () => { if (!isDue) { isDue = true; requestAnimationFrame(() => { isDue = false; charts(calls, places); }); } };
    ends.push(follow("enfold.calls", {}, (call) => {
      if (calls.some((each) => each.time === call.time && each.request_id === call.request_id && each.operation === call.operation)) return;
      calls.push(call);
      if (calls.length > MOST) calls.shift();
      later();
    }, () => {}));
    const timer = setInterval(later, EVERY);
    ends.push(() => clearInterval(timer));
    charts(calls, places);
  }
  if (places.questions.isConnected || tiles.contains(places.questions)) {
    const ask = async () => {
      const waiting = await value("enfold.tasks.list", { status: "input_required", limit: 100 }).catch(() => null);
      if (waiting) show(places.questions, tile("Questions waiting", h("a", { href: "#/tasks?status=input_required" }, waiting.length === 100 ? "100+" : String(waiting.length)), waiting.length ? "Tasks that need an answer" : "No task needs an answer"));
    };
    await ask();
    const timer = setInterval(ask, EVERY);
    ends.push(() => clearInterval(timer));
  }
  return { changed, ended: () => ends.forEach((end) => end()) };
}

function charts(calls, places) {
  const now = Date.now(), minutes = Array.from({ length: MINUTES }, () => []);
  for (const each of calls) {
    const ago = Math.floor((now - each.time) / MINUTE);
    if (ago >= 0 && ago < MINUTES) minutes[MINUTES - 1 - ago].push(each);
  }
  const all = minutes.flat(), bad = (some) => some.filter((each) => outcome(each.code)[0] === "failed").length;
  const at = (some, part) => { const sorted = some.map((each) => each.duration_ms).sort((one, other) => one - other); return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] || 0; };
  const last = minutes[MINUTES - 1].length, failures = bad(all), span = `in the last ${MINUTES} minutes`;
  show(places.calls, tile("Calls per minute", String(last), `${count(all.length, "call")} ${span}`, bars(`Calls in each of the last ${MINUTES} minutes: ${count(all.length, "call")}`, minutes.map((each) => each.length))));
  show(places.failures, tile("Failed calls", h("a", { href: "#/calls?result=failed", class: failures ? "bad" : null }, String(failures)), all.length ? `${Math.round((failures / all.length) * 100)} % ${span}` : `No calls ${span}`, bars(`Failed calls in each of the last ${MINUTES} minutes: ${failures}`, minutes.map(bad), "bad")));
  show(places.latency, tile("Latency", all.length ? took(at(all, 0.5)) : "–", all.length ? `median; 95 % within ${took(at(all, 0.95))}` : `No calls ${span}`, bars(`95th percentile of the latency in each of the last ${MINUTES} minutes`, minutes.map((each) => at(each, 0.95)))));
}

function kinds(operations) {
  const number = (type) => operations.filter((each) => each.type === type).length;
  return [["query", "queries"], ["mutation", "mutations"], ["subscription", "subscriptions"]].filter(([type]) => number(type)).map(([type, words]) => `${long(number(type))} ${number(type) === 1 ? type : words}`).join(", ") || "None yet";
}

function addresses(about) {
  if (!about) return note("A token is required to see them.");
  return h("ul.plain", about.surfaces.map(({ name, address }) => {
    const isPath = /^[a-z/{]/i.test(address) && !address.includes(" "), whole = isPath ? decodeURI(new URL(address.replace(/^\//, ""), base).href) : address;
    return h("li.address", h("span.dim", name), h("code", whole), isPath && copyButton("Copy", () => whole));
  }));
}

function caller({ about, own }) {
  if (about?.caller) return pairs([["You", about.caller.id], ["On behalf of", about.caller.on_behalf_of], ["Scopes", about.caller.scopes.join(" ") || "none"]]);
  return h("p", own.has("enfold.sources") ? "Anonymous: this server has no authentication." : "Anonymous: you call without a token.");
}

// Without a token the list of operations is the answer; with one, the server says what others can call.
function anonymous({ about, operations }) {
  const { operations: number, ids } = about?.anonymous || { operations: operations.length, ids: operations.map((each) => each.id) };
  if (!number) return h("p", "Nothing: every call needs a token.");
  if (about && number >= operations.length) return h("p", chip("everything", "warn"), " Every operation can be called without a token.");
  return [h("p", chip(count(number, "operation"), "warn"), " can be called without a token."),
    h("ul.plain", ids.slice(0, MOST_OPEN).map((id) => h("li", to("operations", id, id, "id")))), number > MOST_OPEN && note(`and ${long(number - MOST_OPEN)} more`)];
}
