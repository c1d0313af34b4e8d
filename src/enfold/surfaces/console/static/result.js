// An answer: one line that says where it came from, and below it the data and everything beside it.

import { bytes, copyButton, count, h, show, tabs, took } from "./dom.js";

const ROWS = 100;
const LONG = 600;
const SHORT = 110;
const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;

export function answerView(outcome) {
  const { envelope, ms, status, headers, text } = outcome;
  const { data, meta, warnings = [], provenance } = envelope;
  let root = null;
  const panes = tabs("Answer", [
    ["Data", () => { const made = dataView(data, meta); root = made.root; return made.element; }],
    ["Envelope", () => tree({ data, meta }).element],
    [`Warnings (${warnings.length})`, () => warningsView(warnings, (path) => { panes.choose(0); (root || asTree()).reveal(path); })],
    ["Headers", () => headersView(headers, meta)],
    ["Provenance", () => provenanceView(provenance, headers)],
    ["Raw", () => raw(text)],
  ]);
  function asTree() { root = tree(data); show(panes.element.querySelector(".panel"), root.element); return root; }
  const code = meta.isError ? "error result" : "OK";
  return h("section", { class: "answer", "aria-label": "Answer" },
    summary([[code, meta.isError ? "bad" : "good"], [from(meta)], [took(ms)], [bytes(new Blob([text]).size)],
      warnings.length ? [count(warnings.reduce((sum, each) => sum + (each.count || 1), 0), "warning"), "warn", () => panes.choose(2)] : ["no warnings", "dim"],
      runOf(headers) && [`run ${runOf(headers).slice(0, 8)}`, "", () => { location.hash = `#/runs/${encodeURIComponent(runOf(headers))}`; }]]),
    status !== 200 && h("p", { class: "dim small" }, `HTTP ${status}`), panes.element);
}

export function failureView(error) {
  const outcome = error.outcome;
  const details = Object.keys(error.details || {}).length > 0;
  return h("section", { class: "answer", "aria-label": "Answer" },
    summary([[error.code, "bad"], outcome && [took(outcome.ms)], outcome && [`HTTP ${outcome.status}`], outcome && runOf(outcome.headers) && [`run ${runOf(outcome.headers).slice(0, 8)}`]]),
    h("p", { class: "sentence", dir: "auto" }, error.message),
    outcome && tabs("Answer", [...(details ? [["Details", () => tree(error.details).element]] : []), ["Headers", () => headersView(outcome.headers, {})], ["Raw", () => raw(outcome.text)]]).element);
}

const runOf = (headers) => headers.find(([name]) => name === "enfold-run-id")?.[1];

export function from(meta) {
  if (meta.source === "http") return `http ${meta.statusCode}${meta.contentType ? ` · ${meta.contentType.split(";")[0]}` : ""}`;
  return meta.source;
}

function summary(parts) {
  return h("p", { class: "summary" }, parts.filter(Boolean).map(([words, kind, go]) =>
    go ? h("button", { type: "button", class: `chip ${kind || ""}`, onclick: go }, words) : h("span", { class: `chip ${kind || ""}` }, words)));
}

function warningsView(warnings, go) {
  if (!warnings.length) return h("p", { class: "dim" }, "The result is what was promised: nothing was changed.");
  return h("ul", { class: "warnings" }, warnings.map((each) => h("li", {},
    h("code", {}, each.code), h("span", { dir: "auto" }, each.message || "", each.count > 1 && h("span", { class: "dim" }, `, ${each.count} times`)),
    h("button", { type: "button", class: "quiet", "aria-label": `Show ${each.path || "/"}`, onclick: () => go(each.path) }, "Show"))));
}

function headersView(headers, meta) {
  const rows = (pairs) => h("dl", { class: "pairs" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", { dir: "auto" }, String(value))]));
  return [h("h3", {}, "Of this answer"), rows(headers), meta.headers && [h("h3", {}, "Of the service behind it"), rows(Object.entries(meta.headers))]];
}

function provenanceView(record, headers) {
  const run = runOf(headers);
  if (!record && !run) return h("p", { class: "dim" }, "This run was not recorded. Choose “Record this run” before you call, where the server allows it.");
  return [run && h("p", {}, "Recorded as ", h("a", { href: `#/runs/${encodeURIComponent(run)}` }, run)), record && tree(record).element];
}

function raw(text) {
  const shown = text.length > 200000 ? `${text.slice(0, 200000)}\n… ${bytes(text.length - 200000)} more: copy to have all of it` : text;
  return [copyButton(() => text), h("pre", { class: "raw", dir: "ltr", tabindex: "0" }, shown)];
}

// --- data ---------------------------------------------------------------------------------------------------------

export function dataView(data, meta = {}) {
  const images = imagesIn(data, meta);
  if (isTable(data)) {
    const place = h("div");
    const toTable = () => show(place, switcher("Show as a tree", toTree), table(data));
    const toTree = () => { const made = tree(data); show(place, switcher("Show as a table", toTable), made.element); return made; };
    toTable();
    return { element: [images, place], root: { reveal: (path) => toTree().reveal(path) } };
  }
  const root = tree(data);
  return { element: [images, root.element], root };
}

const switcher = (words, go) => h("button", { type: "button", class: "quiet", onclick: go }, words);

function imagesIn(data, meta) {
  const found = [];
  if (meta.dataEncoding === "base64" && IMAGES.test(meta.contentType?.split(";")[0])) found.push([meta.contentType.split(";")[0], data]);
  const look = (value, depth) => {
    if (!value || typeof value !== "object" || depth > 4 || found.length > 20) return;
    if (value.type === "image" && typeof value.data === "string" && IMAGES.test(value.mimeType)) found.push([value.mimeType, value.data]);
    else for (const each of Array.isArray(value) ? value.slice(0, 50) : Object.values(value).slice(0, 50)) look(each, depth + 1);
  };
  look(data, 0);
  look(meta.content, 0);
  const seen = new Set();
  return found.filter(([, each]) => typeof each === "string" && !seen.has(each) && seen.add(each) && /^[A-Za-z0-9+/=\s]+$/.test(each))
    .map(([type, each], place) => h("figure", {}, h("img", { src: `data:${type};base64,${each}`, alt: `Image ${place + 1} of the result` })));
}

const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function isTable(data) {
  if (!Array.isArray(data) || !data.length || !data.slice(0, 50).every(isRecord)) return false;
  const columns = new Set(data.slice(0, 50).flatMap(Object.keys));
  return columns.size > 0 && columns.size <= 14;
}

function table(rows) {
  const columns = [...new Set(rows.slice(0, 50).flatMap(Object.keys))];
  const body = h("tbody");
  let shown = 0;
  const more = h("button", { type: "button", class: "more", onclick: () => grow(500) }, "Show more");
  function grow(number) {
    body.append(...rows.slice(shown, shown + number).map((row) => h("tr", {}, columns.map((name) => h("td", { class: typeof row?.[name] === "number" ? "number" : null }, h("bdi", {}, cell(row?.[name])))))));
    shown = Math.min(shown + number, rows.length);
    more.hidden = shown >= rows.length;
  }
  grow(ROWS);
  return [h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the result" }, h("table", {}, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col", class: typeof rows[0][name] === "number" ? "number" : null }, h("bdi", {}, name))))), body)), more];
}

function cell(value) {
  if (value === undefined) return "";
  if (value === null) return h("span", { class: "dim" }, "null");
  if (typeof value !== "object") return shortened(String(value), 300);
  return h("details", {}, h("summary", {}, Array.isArray(value) ? count(value.length, "item") : `{${Object.keys(value).length}}`), tree(value).element);
}

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

// A small value on one line, as for an item of a stream; any other as a tree.
export function briefly(data, meta) {
  const text = JSON.stringify(data);
  return text.length > SHORT || (data && typeof data === "object" && imagesIn(data, meta).length) ? dataView(data, meta).element : h("p", { class: "tree" }, h("span", { dir: "auto", class: typeof data }, plainly(text)));
}

// A tree that is made as far as it is opened; `reveal` opens the way to a JSON pointer.
export function tree(value) {
  const root = node(null, value, 0);
  return {
    element: h("div", { class: "tree", dir: "ltr" }, root.element),
    reveal(pointer) {
      let at = root;
      for (const part of pointer.split("/").slice(1).map((each) => each.replaceAll("~1", "/").replaceAll("~0", "~"))) {
        const next = at.child?.(part);
        if (!next) break;
        at = next;
      }
      at.element.classList.add("found");
      at.element.tabIndex = -1;
      at.element.focus();
      at.element.scrollIntoView({ block: "center" });
    },
  };
}

function node(key, value, depth) {
  const name = key === null ? null : h("span", { class: "key", dir: "auto" }, plainly(String(key)), h("span", { class: "dim" }, ": "));
  if (value === null || typeof value !== "object") return { element: h("div", { class: "leaf" }, name, leaf(value)) };
  const entries = Array.isArray(value) ? value.map((each, place) => [place, each]) : Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) return { element: h("div", { class: "leaf" }, name, h("span", { class: "dim" }, Array.isArray(value) ? "[]" : "{}")) };
  const children = new Map();
  const body = h("div", { class: "inside" });
  let shown = 0;
  const more = h("button", { type: "button", class: "quiet", onclick: () => grow(500) }, "Show more");
  function grow(number) {
    const made = entries.slice(shown, shown + number).map(([each, item]) => { const child = node(each, item, depth + 1); children.set(String(each), child); return child.element; });
    shown += made.length;
    more.remove();
    body.append(...made);
    if (shown < entries.length) { more.textContent = `Show more of ${entries.length.toLocaleString("en")}`; body.append(more); }
  }
  const element = h("details", { ontoggle() { if (element.open && !shown) grow(ROWS); } }, h("summary", {}, name, h("span", { class: "dim" }, size)), body);
  if (depth < 2 && entries.length <= ROWS) { grow(ROWS); element.open = true; }
  return {
    element,
    child(part) {
      const place = entries.findIndex(([each]) => String(each) === part);
      if (place < 0) return null;
      while (shown <= place) grow(500);
      element.open = true;
      return children.get(part);
    },
  };
}

// Characters that turn the direction of what follows would let a text look like another: they are written out.
const plainly = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (each) => `\\u${each.charCodeAt(0).toString(16)}`);

function leaf(value) {
  if (typeof value !== "string") return h("span", { class: value === null ? "null" : typeof value }, String(value));
  const quoted = (text) => plainly(JSON.stringify(text));
  if (value.length <= LONG) return h("span", { class: "string", dir: "auto" }, quoted(value));
  const place = h("span", { class: "string", dir: "auto" }, quoted(value.slice(0, LONG)), "…");
  const all = h("button", { type: "button", class: "quiet", onclick() { show(place, quoted(value)); } }, `Show all ${value.length.toLocaleString("en")} characters`);
  place.append(" ", all);
  return place;
}
