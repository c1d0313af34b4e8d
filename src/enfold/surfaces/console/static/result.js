// An answer: one line that says where it came from, and below it the data and everything beside it.

import { block, blocksIn, file, isBlock } from "./blocks.js";
import { announce, button, bytes, chip, copied, copyButton, count, h, long, note, pairs, searchbox, shortened, show, table as grid, tabs, to, took } from "./dom.js";
import { Exact, write } from "./json.js";

const ROWS = 100;
const LONG = 600;
const SHORT = 110;
const COLUMNS = 40;
const MOST_FOUND = 1000;

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

// Content blocks are shown as what they are, in their order; lists of records as tables, all of the data or, as most
// services answer, a part of it; everything else as a tree.
export function dataView(data, meta = {}) {
  if (meta.dataEncoding === "base64" && typeof data === "string") return { element: file(data, meta.contentType, "result"), root: tree(data) };
  const isContent = Array.isArray(data) && data.length > 0 && data.length <= 200 && data.every(isBlock);
  const beside = isContent ? [] : [...new Map([...blocksIn(data), ...blocksIn(meta.content)].map((each) => [each.data, each])).values()].map((each, at) => block(each, at + 1));
  const tables = isContent || isTable(data) ? [["", data]] : isRecord(data) ? Object.entries(data).filter(([, each]) => isTable(each)) : [];
  if (!tables.length) {
    const root = tree(data);
    return { element: [beside, root.element], root };
  }
  const rest = isRecord(data) && Object.entries(data).filter(([, each]) => !isTable(each));
  const place = h("div");
  const toTables = () => show(place, button("Show as a tree", toTree, "quiet"), rest.length > 0 && tree(Object.fromEntries(rest)).element,
    tables.map(([name, rows]) => [name && h("h3", name), isContent ? rows.map((each, at) => block(each, at + 1)) : table(rows)]));
  const toTree = () => { const made = tree(data); show(place, button(`Show as ${isContent ? "content" : "a table"}`, toTables, "quiet"), made.element); return made; };
  toTables();
  return { element: [beside, place], root: { reveal: (path) => toTree().reveal(path) } };
}

const isLeaf = (value) => value === null || typeof value !== "object" || value instanceof Exact;
const isRecord = (value) => !isLeaf(value) && !Array.isArray(value);
const isNumber = (value) => typeof value === "number" || value instanceof Exact;

const columnsOf = (rows) => [...new Set(rows.slice(0, 50).flatMap(Object.keys))];

function isTable(data) {
  if (!Array.isArray(data) || !data.length || !data.slice(0, 50).every(isRecord)) return false;
  const number = columnsOf(data).length;
  return number > 0 && number <= COLUMNS;
}

// A table by pages; a click on the name of a column sorts by it, up, down, and not at all.
function table(given) {
  const columns = columnsOf(given);
  const body = h("tbody");
  let rows = given, shown = 0, sorted = null, way = 0;
  const more = button("", () => grow(500), "more");
  function grow(number) {
    body.append(...rows.slice(shown, shown + number).map((row) => h("tr", columns.map((name) => h("td", { class: isNumber(at(row, name)) ? "end" : null }, h("bdi", cell(at(row, name))))))));
    shown = Math.min(shown + number, rows.length);
    more.hidden = shown >= rows.length;
    more.textContent = `Show more: ${long(shown)} of ${long(rows.length)}`;
  }
  function sort(name, heads) {
    way = sorted === name ? (way + 1) % 3 : 1;
    sorted = name;
    const sign = way === 2 ? -1 : 1;
    rows = way ? [...given].sort((one, other) => sign * compared(at(one, name), at(other, name))) : given;
    heads.forEach((head, place) => { const its = columns[place] === name && way; head.setAttribute("aria-sort", its ? (way === 1 ? "ascending" : "descending") : "none"); });
    announce(way ? `Sorted by ${name}` : "In the original order");
    shown = 0;
    show(body);
    grow(ROWS);
  }
  const element = grid("Table of the result", columns.map((name) => [name, isNumber(at(given[0], name))]), body, "result");
  const heads = [...element.querySelectorAll("th")];
  heads.forEach((head, place) => head.replaceChildren(button(h("bdi", columns[place]), () => sort(columns[place], heads), "sort")));
  grow(ROWS);
  return [element, more];
}

// Numbers before texts before what has neither; what is missing comes last.
function compared(one, other) {
  const rank = (value) => (value == null ? 3 : isNumber(value) ? 0 : typeof value === "object" ? 2 : 1);
  if (rank(one) !== rank(other)) return rank(one) - rank(other);
  if (rank(one) === 0) return Number(one) - Number(other);
  return rank(one) === 1 ? String(one).localeCompare(String(other), undefined, { numeric: true }) : 0;
}

const at = (row, name) => (row && Object.hasOwn(row, name) ? row[name] : undefined);

function cell(value) {
  if (value === undefined) return "";
  if (value === null) return h("span.dim", "null");
  if (isLeaf(value)) return whole(String(value), (text) => text);
  return h("details", h("summary", Array.isArray(value) ? count(value.length, "item") : `{${Object.keys(value).length}}`), tree(value).element);
}

// A small value on one line, as for an item of a stream; any other as a tree.
export function briefly(data, meta) {
  const text = isLeaf(data) || Object.keys(data).length <= 12 ? write(data) : "";
  if (!text || text.length > SHORT || blocksIn(data).length || blocksIn(meta.content).length) return dataView(data, meta).element;
  return h("p.tree", h("span", { class: isNumber(data) ? "number" : typeof data }, text));
}

// A tree that is made as far as it is opened; `reveal` opens the way to a JSON pointer. The path of what was clicked or found
// stands above it, to copy.
export function tree(value) {
  const root = node(null, value, 0, "$");
  const path = h("code.path"), tools = h("p.tools", { hidden: true }, path, copyButton("Copy path", () => path.textContent));
  const mark = (element) => { path.textContent = element.path; tools.hidden = false; };
  const body = h("div.tree", { dir: "ltr", onclick({ target }) { const found = target.closest(".leaf, details"); if (found?.path) mark(found); } }, root.element);
  function reveal(pointer, takesFocus = true) {
    let at = root;
    for (const part of pointer.split("/").slice(1).map((each) => each.replaceAll("~1", "/").replaceAll("~0", "~"))) {
      const next = at.child?.(part);
      if (!next) break;
      at = next;
    }
    for (const old of body.querySelectorAll(".found")) old.classList.remove("found");
    at.element.classList.add("found");
    mark(at.element);
    at.element.tabIndex = -1;
    if (takesFocus) at.element.focus();
    at.element.scrollIntoView({ block: "center" });
  }
  return { element: h("div.treeview", isLarge(value) && finder(value, (pointer) => reveal(pointer, false)), tools, body), reveal };
}

function isLarge(value) {
  const waiting = [value];
  for (let seen = 0; waiting.length; ) {
    const each = waiting.pop();
    if (++seen > 40) return true;
    if (!isLeaf(each)) waiting.push(...Object.values(each).slice(0, 20));
  }
  return false;
}

// A search in all of a value, also where the tree is not opened. It goes on between two frames, so that the page never stops.
function finder(value, reveal) {
  let found = [], now = -1, turn = 0;
  const told = h("span.dim.small", { role: "status" }), ways = h("span", { hidden: true }, button("Previous", () => step(-1), "quiet"), button("Next", () => step(1), "quiet"));
  const box = searchbox("Search in the result", "Search names and values", "", look);
  box.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) { event.preventDefault(); step(event.shiftKey ? -1 : 1); } });
  function step(by) {
    if (!found.length) return;
    now = (now + by + found.length) % found.length;
    reveal(found[now]);
    told.textContent = `${now + 1} of ${found.length === MOST_FOUND ? `the first ${long(MOST_FOUND)}` : long(found.length)}`;
  }
  async function look() {
    const mine = ++turn, word = box.value.trim().toLowerCase(), waiting = [["", null, value]], hits = [];
    now = -1;
    found = [];
    told.textContent = "";
    ways.hidden = true;
    for (let seen = 1; word && waiting.length && hits.length < MOST_FOUND; seen++) {
      const [pointer, key, each] = waiting.pop();
      if ((key !== null && String(key).toLowerCase().includes(word)) || (isLeaf(each) && String(each).toLowerCase().includes(word))) hits.push(pointer);
      if (!isLeaf(each)) for (const name of Object.keys(each).reverse()) waiting.push([`${pointer}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`, Array.isArray(each) ? null : name, each[name]]);
      if (seen % 20000 === 0) {
        await new Promise((resolve) => setTimeout(resolve));
        if (mine !== turn) return;
      }
    }
    if (!word || mine !== turn) return;
    found = hits;
    ways.hidden = !found.length;
    if (found.length) step(1);
    else told.textContent = "No matches";
  }
  return h("div.find", box, ways, told);
}

const below = (path, key) => (typeof key === "number" ? `${path}[${key}]` : /^[A-Za-z_$][\w$]*$/.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`);

function node(key, value, depth, path) {
  const name = key === null ? null : [h("span.key", String(key)), h("span.dim", ": ")];
  const made = (element, more) => Object.assign({ element: Object.assign(element, { path }) }, more);
  if (isLeaf(value)) return made(h("div.leaf", name, leaf(value)));
  const keys = Object.keys(value), isList = Array.isArray(value);
  const number = long(keys.length), size = isList ? `[${number}]` : `{${number}}`;
  if (!keys.length) return made(h("div.leaf", name, h("span.dim", isList ? "[]" : "{}")));
  // Of many only those between `first` and `last` are there: what is far away is gone to, not unfolded to.
  const children = new Map();
  let first = 0, last = 0;
  const body = h("div.inside"), more = button(`Show more of ${number}`, () => grow(500), "quiet"), before = button("Show those before", () => grow(-500), "quiet");
  function grow(by) {
    const [from, to] = by < 0 ? [Math.max(first + by, 0), first] : [last, Math.min(last + by, keys.length)];
    const elements = keys.slice(from, to).map((each) => { const its = isList ? Number(each) : each, child = node(its, value[each], depth + 1, below(path, its)); children.set(each, child); return child.element; });
    more.remove();
    before.remove();
    body[by < 0 ? "prepend" : "append"](...elements);
    [first, last] = [Math.min(first, from), Math.max(last, to)];
    if (first > 0) body.prepend(before);
    if (last < keys.length) body.append(more);
  }
  function jump(place) {
    if (place >= first && place < last) return;
    if (place < first || place > last + 1000) { children.clear(); show(body); first = last = Math.floor(place / ROWS) * ROWS; }
    while (last <= place) grow(ROWS);
  }
  const element = h("details", { ontoggle() { if (element.open && !last) grow(ROWS); } }, h("summary", name, h("span.dim", size)), body);
  if (depth < 2 && keys.length <= ROWS) { grow(ROWS); element.open = true; }
  return made(element, {
    child(part) {
      // A warning about all items of a list names them with a star: the first of them will do.
      const place = isList ? (part === "*" ? 0 : Number(part)) : keys.indexOf(part);
      if (!(place in keys)) return null;
      jump(place);
      element.open = true;
      return children.get(keys[place]);
    },
  });
}

function leaf(value) {
  if (typeof value !== "string") return h("span", { class: value === null ? "null" : isNumber(value) ? "number" : typeof value }, shortened(String(value), LONG));
  // As JSON, but with lines as lines: exactly is what Raw is for.
  return h("span.string", whole(value, (text) => JSON.stringify(text).replace(/\\(.)/g, (all, each) => ({ n: "\n", t: "\t" })[each] || all)));
}

// A text, of which a long one is shown in pages.
function whole(value, written) {
  if (value.length <= LONG) return written(value);
  let shown = LONG;
  const place = h("span"), more = button("", () => { shown += 100_000; draw(); }, "quiet");
  function draw() {
    const left = value.length - shown;
    more.textContent = left > 100_000 ? `Show more: ${long(shown)} of ${long(value.length)} characters` : `Show all ${long(value.length)} characters`;
    show(place, written(value.slice(0, shown)), left > 0 && ["… ", more]);
  }
  draw();
  return place;
}
