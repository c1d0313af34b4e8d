// Calls as they end, newest first: a filter, and one of them in full.

import { follow } from "./api.js";
import { bytes, clock, count, failed, h, show, took } from "./dom.js";

const MOST = 500;

export function callsPage(place) {
  const told = h("p", { class: "dim small", role: "status" }, "Waiting for calls…");
  const search = h("input", { type: "search", placeholder: "Filter by operation, caller, code, surface or request id", "aria-label": "Filter calls", oninput: draw });
  const onlyBad = h("input", { type: "checkbox", onchange: draw });
  const body = h("tbody");
  const open = h("div", { "aria-live": "polite" });
  const calls = [];
  let waiting = false;

  function draw() {
    waiting = false;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fit = calls.filter((each) => (!onlyBad.checked || each.code !== "OK") && words.every((word) => text(each).includes(word)));
    show(body, fit.slice(0, 200).map((each) => row(each, () => show(open, one(each)))));
    if (!fit.length) show(body, h("tr", {}, h("td", { colspan: "7", class: "none" }, calls.length ? "No call fits." : "Nothing has been called yet. Call an operation, and it appears here.")));
    told.textContent = fit.length === calls.length ? `The last ${count(calls.length, "call")}` : `${fit.length} of the last ${count(calls.length, "call")}`;
  }
  draw();
  show(place, h("div", { class: "heading" }, h("h1", {}, "Calls"), told),
    h("div", { class: "filters", role: "search" }, search, h("label", { class: "switch" }, onlyBad, "Failures alone")), open,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Calls" }, h("table", { class: "calls" }, h("thead", {}, h("tr", {}, ["Time", "Operation", "Code", "Took", "Caller", "Surface", "Warnings"].map((each) => h("th", { scope: "col", class: /Took|Warn/.test(each) ? "number" : null }, each)))), body)));
  return follow("enfold.calls", {}, (call) => {
    calls.unshift(call);
    calls.length = Math.min(calls.length, MOST);
    if (!waiting) { waiting = true; requestAnimationFrame(draw); }
  }, (error) => { if (error) { calls.length = 0; told.textContent = "Not connected"; show(open, failed(error)); } else if (open.querySelector(".failure")) show(open); });
}

const text = (each) => `${each.operation} ${each.caller || ""} ${each.code} ${each.surface} ${each.request_id} ${each.source}`.toLowerCase();

function row(each, go) {
  return h("tr", { class: each.code === "OK" ? "" : "bad" },
    h("td", { class: "nowrap" }, clock(each.time)),
    h("td", {}, h("button", { type: "button", class: "link id", onclick: go }, each.operation || "none found")),
    h("td", {}, h("span", { class: `chip ${each.code === "OK" ? "good" : "bad"}` }, each.code)),
    h("td", { class: "number nowrap" }, took(each.duration_ms)), h("td", { dir: "auto" }, each.caller || "anonymous"), h("td", {}, each.surface), h("td", { class: "number" }, each.warnings || ""));
}

function one(each) {
  const facts = [["Operation", each.operation && h("a", { href: `#/operations/${encodeURIComponent(each.operation)}` }, each.operation)], ["Source", each.source], ["Code", each.code], ["Time", new Date(each.time).toLocaleString()], ["Took", took(each.duration_ms)], ["Caller", each.caller || "anonymous"],
    ["Surface", each.surface], ["Request id", each.request_id], ["Called by", each.parent_request_id], ["Warnings", each.warnings ? `${each.warnings}, first ${each.first_warning}` : ""], ["Request", bytes(each.request_bytes)], ["Answer", bytes(each.response_bytes)], ["Items", each.items]];
  const card = h("article", { class: "card", tabindex: "-1", "aria-label": `Call ${each.request_id}` }, h("div", { class: "bar" }, h("h2", { class: "id" }, each.operation || "No operation"), h("button", { type: "button", class: "quiet", onclick: () => card.remove() }, "Close")),
    h("dl", { class: "facts" }, facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", { dir: "auto" }, value instanceof Node ? value : String(value))])));
  requestAnimationFrame(() => card.focus());
  return card;
}
