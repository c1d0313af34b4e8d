// An answer: one line that says where it came from, and below it the data and everything beside it.

import { button, bytes, chip, copied, count, h, long, note, pairs, shortened, show, table as grid, tabs, to, took } from "./dom.js";
import { Exact, write } from "./json.js";

const ROWS = 100;
const LONG = 600;
const SHORT = 110;
const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;

export function answerView(outcome, canRecord) {
  const { envelope, ms, status, headers, text } = outcome;
  const { data, meta, warnings = [], provenance } = envelope;
  let root = null;
  const panes = tabs("Answer", [
    ["Data", () => { const made = dataView(data, meta); root = made.root; return made.element; }],
    ["Envelope", () => tree({ data, meta }).element],
    [`Warnings (${warnings.length})`, () => warningsView(warnings, (path) => { panes.choose(0); root.reveal(path); })],
    ["Headers", () => headersView(headers, meta)],
    ["Provenance", () => provenanceView(provenance, headers, canRecord)],
    ["Raw", () => raw(text)],
  ]);
  const code = meta.isError ? "error result" : "OK";
  return h("section.answer", { "aria-label": "Answer" },
    h("p.summary", chip(code, meta.isError ? "bad" : "good"), chip(from(meta)), chip(took(ms)), chip(bytes(new Blob([text]).size)),
      warnings.length ? chip(count(warnings.length, "warning"), "warn", () => panes.choose(2)) : chip("no warnings", "dim"), runChip(headers)),
    status !== 200 && note(`HTTP ${status}`), panes.element);
}

export function failureView(error) {
  const outcome = error.outcome;
  const details = Object.keys(error.details || {}).length > 0;
  return h("section.answer", { "aria-label": "Answer" },
    h("p.summary", chip(error.code, "bad"), outcome && [chip(took(outcome.ms)), chip(`HTTP ${outcome.status}`), runChip(outcome.headers)]),
    h("p", error.message),
    outcome && tabs("Answer", [...(details ? [["Details", () => tree(error.details).element]] : []), ["Headers", () => headersView(outcome.headers, {})], ["Raw", () => raw(outcome.text)]]).element);
}

const runOf = (headers) => headers.find(([name]) => name === "enfold-run-id")?.[1];

function runChip(headers) {
  const run = runOf(headers);
  return run && to("runs", run, `run ${run.slice(0, 8)}`, "chip");
}

export function from(meta) {
  if (meta.source === "http") return `http ${meta.statusCode}${meta.contentType ? ` · ${meta.contentType.split(";")[0]}` : ""}`;
  return meta.source;
}

function warningsView(warnings, go) {
  if (!warnings.length) return h("p.dim", "The result matches its schema: nothing was changed.");
  return h("ul.warnings", warnings.map((each) => h("li", {},
    h("code", each.code), h("span", each.message || "", each.count > 1 && h("span.dim", `, ${each.count} times`)),
    h("button.quiet", { "aria-label": `Show ${each.path || "/"}`, onclick: () => go(each.path) }, "Show"))));
}

function headersView(headers, meta) {
  return [h("h3", "Response headers"), pairs(headers, "pairs"), meta.headers && [h("h3", "Upstream headers"), pairs(Object.entries(meta.headers), "pairs")]];
}

function provenanceView(record, headers, canRecord) {
  const run = runOf(headers);
  if (!record && !run) return h("p.dim", "This run was not recorded. ", canRecord ? "Choose “Record this run” before you call." : "Start the server with --provenance --store FILE to store records.");
  return [run && h("p", "Recorded as ", to("runs", run)), record && tree(record).element];
}

function raw(text) {
  const shown = text.length > 200000 ? `${text.slice(0, 200000)}\n… ${bytes(text.length - 200000)} more: copy to get all of it` : text;
  return copied(shown, () => text);
}

// --- data

// Lists of records are tables: all of the data, or, as most services answer, a part of it. Texts of an MCP server are texts.
export function dataView(data, meta = {}) {
  const images = imagesIn(data, meta), isText = Array.isArray(data) && data.length > 0 && data.every(isBlock);
  const tables = isText || isTable(data) ? [["", data]] : isRecord(data) ? Object.entries(data).filter(([, each]) => isTable(each)) : [];
  if (!tables.length) {
    const root = tree(data);
    return { element: [images, root.element], root };
  }
  const rest = isRecord(data) && Object.entries(data).filter(([, each]) => !isTable(each));
  const place = h("div");
  const toTables = () => show(place, button("Show as a tree", toTree, "quiet"), rest.length > 0 && tree(Object.fromEntries(rest)).element,
    tables.map(([name, rows]) => [name && h("h3", name), isText ? rows.map(({ text }) => text && copied(text)) : table(rows)]));
  const toTree = () => { const made = tree(data); show(place, button(`Show as ${isText ? "text" : "a table"}`, toTables, "quiet"), made.element); return made; };
  toTables();
  return { element: [images, place], root: { reveal: (path) => toTree().reveal(path) } };
}

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
    .map(([type, each], place) => h("figure", h("img", { src: `data:${type};base64,${each}`, alt: `Image ${place + 1} of the result` })));
}

const isLeaf = (value) => value === null || typeof value !== "object" || value instanceof Exact;
const isRecord = (value) => !isLeaf(value) && !Array.isArray(value);
const isBlock = (value) => isRecord(value) && ((value.type === "text" && typeof value.text === "string") || value.type === "image");
const isNumber = (value) => typeof value === "number" || value instanceof Exact;

const columnsOf = (rows) => [...new Set(rows.slice(0, 50).flatMap(Object.keys))];

function isTable(data) {
  if (!Array.isArray(data) || !data.length || !data.slice(0, 50).every(isRecord)) return false;
  const number = columnsOf(data).length;
  return number > 0 && number <= 14;
}

function table(rows) {
  const columns = columnsOf(rows);
  const body = h("tbody");
  let shown = 0;
  const more = button("Show more", () => grow(500), "more");
  function grow(number) {
    body.append(...rows.slice(shown, shown + number).map((row) => h("tr", columns.map((name) => h("td", { class: isNumber(at(row, name)) ? "end" : null }, h("bdi", cell(at(row, name))))))));
    shown = Math.min(shown + number, rows.length);
    more.hidden = shown >= rows.length;
  }
  grow(ROWS);
  return [grid("Table of the result", columns.map((name) => [name, isNumber(at(rows[0], name))]), body), more];
}

const at = (row, name) => (row && Object.hasOwn(row, name) ? row[name] : undefined);

function cell(value) {
  if (value === undefined) return "";
  if (value === null) return h("span.dim", "null");
  if (isLeaf(value)) return shortened(String(value), 160);
  return h("details", h("summary", Array.isArray(value) ? count(value.length, "item") : `{${Object.keys(value).length}}`), tree(value).element);
}

// A small value on one line, as for an item of a stream; any other as a tree.
export function briefly(data, meta) {
  const text = isLeaf(data) || Object.keys(data).length <= 12 ? write(data) : "";
  if (!text || text.length > SHORT || imagesIn(data, meta).length) return dataView(data, meta).element;
  return h("p.tree", h("span", { class: isNumber(data) ? "number" : typeof data }, text));
}

// A tree that is made as far as it is opened; `reveal` opens the way to a JSON pointer.
export function tree(value) {
  const root = node(null, value, 0);
  return {
    element: h("div.tree", { dir: "ltr" }, root.element),
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
  const name = key === null ? null : [h("span.key", String(key)), h("span.dim", ": ")];
  if (isLeaf(value)) return { element: h("div.leaf", name, leaf(value)) };
  const entries = Array.isArray(value) ? value.map((each, place) => [place, each]) : Object.entries(value);
  const number = long(entries.length), size = Array.isArray(value) ? `[${number}]` : `{${number}}`;
  if (!entries.length) return { element: h("div.leaf", name, h("span.dim", Array.isArray(value) ? "[]" : "{}")) };
  const children = new Map();
  const body = h("div.inside");
  let shown = 0;
  const more = button("", () => grow(500), "quiet");
  function grow(most) {
    const made = entries.slice(shown, shown + most).map(([each, item]) => { const child = node(each, item, depth + 1); children.set(String(each), child); return child.element; });
    shown += made.length;
    more.remove();
    body.append(...made);
    if (shown < entries.length) { more.textContent = `Show more of ${number}`; body.append(more); }
  }
  const element = h("details", { ontoggle() { if (element.open && !shown) grow(ROWS); } }, h("summary", name, h("span.dim", size)), body);
  if (depth < 2 && entries.length <= ROWS) { grow(ROWS); element.open = true; }
  return {
    element,
    child(part) {
      // A warning about all items of a list names them with a star: the first of them will do.
      const place = Array.isArray(value) ? (part === "*" ? 0 : Number(part)) : entries.findIndex(([each]) => each === part);
      if (!entries[place]) return null;
      while (shown <= place) grow(500);
      element.open = true;
      return children.get(String(entries[place][0]));
    },
  };
}

function leaf(value) {
  if (typeof value !== "string") return h("span", { class: value === null ? "null" : isNumber(value) ? "number" : typeof value }, shortened(String(value), LONG));
  // As JSON, but with lines as lines: exactly is what Raw is for.
  const quoted = (text) => JSON.stringify(text).replace(/\\(.)/g, (all, each) => ({ n: "\n", t: "\t" })[each] || all);
  if (value.length <= LONG) return h("span.string", quoted(value));
  const place = h("span.string", quoted(value.slice(0, LONG)), "…");
  place.append(" ", button(`Show all ${long(value.length)} characters`, () => show(place, quoted(value)), "quiet"));
  return place;
}
