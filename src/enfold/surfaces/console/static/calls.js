// Calls as they end, newest first: filters, a search that ranks, and one of them in full.

import { follow } from "./api.js";
import { lasting } from "./chart.js";
import { address, button, bytes, chip, count, failed, filters, h, heading, moment, note, pairs, searchbox, select, show, table, to, took, when } from "./dom.js";
import { dataView } from "./result.js";

const MOST = 500, SHOWN = 200;
const COLUMNS = [["Time"], ["Operation"], ["Result"], ["Code"], ["Duration", true], ["Caller"], ["Surface"], ["Warnings", true]];
const RESULTS = [["", "All results"], ["succeeded", "Succeeded"], ["failed", "Failed"], ["asked", "Asked or left"]];

export function callsPage(place, [wanted], { query }) {
  const told = note("Waiting for calls…");
  const search = searchbox("Filter calls", "Search by operation, caller, code, surface or request id", query.get("q"), draw);
  const result = select("Filter by result", RESULTS, query.get("result"), draw), surface = select("Filter by surface", [["", "All surfaces"]], "", draw);
  const body = h("tbody"), grid = table("Calls", COLUMNS, body, "log"), list = h("div"), trouble = h("div"), open = h("div", { "aria-live": "polite" });
  const calls = [], surfaces = new Set();
  let fresh = [];

  const line = (each) => row(each, (event) => choose(each, event.target));
  function choose(each, link) {
    wanted = each?.request_id;
    remember();
    show(open, each && one(each, () => { choose(null); link?.focus(); }));
    mark();
    open.firstChild?.focus();
  }
  const mark = () => { for (const each of body.children) each.classList.toggle("chosen", each.dataset.call === wanted); };
  const remember = () => address(wanted ? `calls/${encodeURIComponent(wanted)}` : "calls", { q: search.value, result: result.value, surface: surface.value });
  const words = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
  // The best come first: a call needs one of the words, and those with more of them, or with one in its operation, rank higher.
  function fitting(all) {
    const asked = words();
    const found = all.filter((each) => (!result.value || outcome(each.code)[0] === result.value) && (!surface.value || each.surface === surface.value)).map((each) => [score(each, asked), each]);
    const most = asked.length > 0 ? found.filter(([points]) => points > 0).sort(([one], [other]) => other - one) : found;
    return most.map(([, each]) => each);
  }
  function draw(event) {
    if (event) remember();
    fresh = [];
    show(body, fitting(calls).slice(0, SHOWN).map(line));
    tell();
  }
  // New rows come above those that are there, which stay as they are, because one of them may have the focus.
  function arrive() {
    body.prepend(...fitting(fresh).slice(-SHOWN).reverse().map(line));
    while (body.children.length > SHOWN) body.lastChild.remove();
    fresh = [];
    const named = !open.firstChild && wanted && calls.find((each) => each.request_id === wanted);
    if (named) choose(named);
    tell();
  }
  function tell() {
    const number = fitting(calls).length;
    mark();
    told.textContent = number === calls.length ? `The last ${count(number, "call")}` : `${number} of the last ${count(calls.length, "call")}`;
    if (!number) show(list, h("p.none", calls.length ? "No matching calls. Try other words, or another filter." : "No calls yet. Call an operation to see it here."));
    else if (!grid.isConnected) show(list, grid);
  }
  function learn(name) {
    if (surfaces.has(name)) return;
    surfaces.add(name);
    surface.append(h("option", { value: name, selected: name === query.get("surface") }, name));
  }
  draw();
  show(place, heading("Calls", told), filters(search, result, surface), trouble, open, list);
  return { ended: follow("enfold.calls", {}, (call) => {
    if (calls.some((each) => each.time === call.time && each.request_id === call.request_id && each.operation === call.operation)) return; // who connects again gets the last ones again
    learn(call.surface);
    calls.unshift(call);
    calls.length = Math.min(calls.length, MOST);
    if (fresh.push(call) === 1) requestAnimationFrame(arrive);
    if (fresh.length > MOST) fresh.shift();
  }, (error) => {
    show(trouble, error && failed(error));
    if (error) told.textContent = "Not connected";
    else tell();
  }) };
}

// Who was asked something, or went away, has not failed.
export const outcome = (code) => (code === "OK" ? ["succeeded", "good"] : /^(INPUT_REQUIRED|DETACHED|ABORTED)$/.test(code) ? ["asked", "warn"] : ["failed", "bad"]);
const WORDS = { INPUT_REQUIRED: "asked", DETACHED: "became a task", ABORTED: "caller left" };

function score(each, asked) {
  const name = each.operation.toLowerCase(), text = `${name} ${each.caller || "anonymous"} ${each.code} ${outcome(each.code)[0]} ${each.surface} ${each.request_id} ${each.source}`.toLowerCase();
  return asked.reduce((sum, word) => sum + (name.includes(word) ? 3 : text.includes(word) ? 2 : 0), 0);
}

function row(each, go) {
  const [words, kind] = outcome(each.code);
  return h("tr", { "data-call": each.request_id }, h("td", when(each.time)), h("td", button(each.operation || "refused", go, "link id")), h("td", chip(WORDS[each.code] || words, kind)), h("td", each.code === "OK" ? "" : each.code),
    h("td.end.lasting", took(each.duration_ms), lasting(each.duration_ms)), h("td", each.caller || "anonymous"), h("td", each.surface), h("td.end", each.warnings || ""));
}

function one(each, close) {
  // What the call was given and gave, where the operator keeps that.
  const kept = ["arguments", "result", "error"].filter((name) => name in each);
  return h("article.card", { tabindex: "-1", "aria-label": `Call ${each.request_id}` },
    h("div.bar", h("h2.id", each.operation ? to("operations", each.operation) : "Refused before an operation was found"), button("Close", close, "quiet")),
    pairs([["Source", each.source], ["Result", outcome(each.code)[0]], ["Code", each.code], ["Time", moment(each.time)], ["Took", took(each.duration_ms)], ["Caller", each.caller || "anonymous"],
      ["Surface", each.surface], ["Request id", each.request_id], ["Called by", each.parent_request_id], ["Warnings", each.warnings ? `${each.warnings}, first ${each.first_warning}` : ""], ["Request", bytes(each.request_bytes)], ["Answer", bytes(each.response_bytes)], ["Items", each.items]], "facts"),
    h("div.sides", kept.map((name) => h("section", h("h3", name[0].toUpperCase() + name.slice(1)), dataView(each[name]).element))),
    each.is_cut && note("Omitted parts (…) were too large to keep."));
}
