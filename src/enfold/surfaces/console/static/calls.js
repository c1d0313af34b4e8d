// Calls as they end, newest first: a filter, and one of them in full.

import { follow } from "./api.js";
import { address, button, bytes, chip, count, failed, filters, h, heading, note, pairs, searchbox, show, table, to, took, when } from "./dom.js";
import { dataView } from "./result.js";

const MOST = 500, SHOWN = 200;
const COLUMNS = [["Time"], ["Operation"], ["Code"], ["Took", true], ["Caller"], ["Surface"], ["Warnings", true]];

export function callsPage(place, [wanted], { query }) {
  const told = note("Waiting for calls…");
  const search = searchbox("Filter calls", "Filter by operation, caller, code, surface or request id", query.get("q"), draw);
  const onlyBad = h("input", { type: "checkbox", checked: query.has("failures"), onchange: draw });
  const body = h("tbody"), trouble = h("div"), open = h("div", { "aria-live": "polite" });
  const calls = [];
  let fresh = [];

  const line = (each) => row(each, (event) => choose(each, event.target));
  function choose(each, link) {
    wanted = each?.request_id;
    remember();
    show(open, each && one(each, () => { choose(null); link?.focus(); }));
    open.firstChild?.focus();
  }
  const remember = () => address(wanted ? `calls/${encodeURIComponent(wanted)}` : "calls", { q: search.value, failures: onlyBad.checked });
  function fitting(all) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((each) => (!onlyBad.checked || kindOf(each.code) === "bad") && words.every((word) => text(each).includes(word)));
  }
  function draw(event) {
    if (event) remember();
    fresh = [];
    show(body, fitting(calls).slice(0, SHOWN).map(line));
    tell();
  }
  // New rows come above those that are there, which stay as they are, because one of them may have the focus.
  function arrive() {
    body.querySelector(".none")?.parentElement.remove();
    body.prepend(...fitting(fresh).slice(-SHOWN).reverse().map(line));
    while (body.children.length > SHOWN) body.lastChild.remove();
    fresh = [];
    const named = !open.firstChild && wanted && calls.find((each) => each.request_id === wanted);
    if (named) choose(named);
    tell();
  }
  function tell() {
    const number = fitting(calls).length;
    told.textContent = number === calls.length ? `The last ${count(number, "call")}` : `${number} of the last ${count(calls.length, "call")}`;
    if (!number) show(body, h("tr", h("td.none", { colspan: "7" }, calls.length ? "No matching calls." : "No calls yet. Call an operation to see it here.")));
  }
  draw();
  show(place, heading("Calls", told), filters(search, h("label.switch", onlyBad, "Failures only")), trouble, open, table("Calls", COLUMNS, body, "log"));
  return { ended: follow("enfold.calls", {}, (call) => {
    if (calls.some((each) => each.time === call.time && each.request_id === call.request_id && each.operation === call.operation)) return; // who connects again gets the last ones again
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
const kindOf = (code) => (code === "OK" ? "good" : /^(INPUT_REQUIRED|DETACHED|ABORTED)$/.test(code) ? "warn" : "bad");
const text = (each) => `${each.operation} ${each.caller || ""} ${each.code} ${each.surface} ${each.request_id} ${each.source}`.toLowerCase();

function row(each, go) {
  return h("tr", h("td", when(each.time)), h("td", button(each.operation || "refused", go, "link id")), h("td", chip(each.code, kindOf(each.code))),
    h("td.end", took(each.duration_ms)), h("td", each.caller || "anonymous"), h("td", each.surface), h("td.end", each.warnings || ""));
}

function one(each, close) {
  // What the call was given and gave, where the operator keeps that.
  const kept = ["arguments", "result", "error"].filter((name) => name in each);
  return h("article.card", { tabindex: "-1", "aria-label": `Call ${each.request_id}` },
    h("div.bar", h("h2.id", each.operation ? to("operations", each.operation) : "Refused before an operation was found"), button("Close", close, "quiet")),
    pairs([["Source", each.source], ["Code", each.code], ["Time", new Date(each.time).toLocaleString()], ["Took", took(each.duration_ms)], ["Caller", each.caller || "anonymous"],
      ["Surface", each.surface], ["Request id", each.request_id], ["Called by", each.parent_request_id], ["Warnings", each.warnings ? `${each.warnings}, first ${each.first_warning}` : ""], ["Request", bytes(each.request_bytes)], ["Answer", bytes(each.response_bytes)], ["Items", each.items]], "facts"),
    h("div.sides", kept.map((name) => h("section", h("h3", name[0].toUpperCase() + name.slice(1)), dataView(each[name]).element))),
    each.is_cut && note("Omitted parts (…) were too large to keep."));
}
