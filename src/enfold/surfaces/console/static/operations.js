// All operations: search as you type, filters by source and kind. Rows are made as far as one looks.

import { address, button, count, empty, filters, h, heading, long, searchbox, shortened, show, status, to } from "./dom.js";

const AT_ONCE = 24;

export function operationsPage(place, rest, state) {
  const chosen = (name) => state.query.get(name) || "";
  const search = searchbox("Search operations", "Search by name, description, tag or source", chosen("q"), filter);
  const source = h("select", { "aria-label": "Filter by source", onchange: filter });
  const kind = h("select", { "aria-label": "Filter by type", onchange: filter });
  const told = status();
  const list = h("ul.rows", { "aria-label": "Operations" });
  const more = button("Show more", () => grow(300), "more");
  let drawn = null, entries = [], found = [], shown = 0;

  function changed() {
    if (drawn === state.operations) return;
    const [least, from, type] = drawn?.length ? [Math.max(shown, AT_ONCE), source.value, kind.value] : [AT_ONCE, chosen("source"), chosen("kind")];
    drawn = state.operations;
    entries = drawn.map((each) => ({ ...each, text: `${each.id} ${each.title} ${each.description} ${each.tags.join(" ")} ${each.source}`.toLowerCase() }));
    options(source, "All sources", [...new Set(entries.map((each) => each.source))], from);
    options(kind, "All types", ["query", "mutation", "subscription"], type);
    if (entries.length) show(place, heading("Operations", told), filters(search, source, kind), list, more);
    else show(place, heading("Operations"), empty("No operations yet", "No operations are registered, or none that you may call. A source may still be starting, or another token may have more access."));
    draw(least);
  }
  function filter() {
    draw(AT_ONCE);
    address("operations", { q: search.value, source: source.value, kind: kind.value });
    state.listed = location.hash;
  }
  function draw(least) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = entries.filter((each) => (!source.value || each.source === source.value) && (!kind.value || each.type === kind.value) && words.every((word) => each.text.includes(word)));
    if (words.length) found.sort((one, other) => rank(one, words) - rank(other, words));
    shown = 0;
    list.replaceChildren();
    grow(least);
    const now = found;
    requestAnimationFrame(() => { if (now === found && shown === AT_ONCE) grow(60); });
    told.textContent = found.length === entries.length ? count(entries.length, "operation") : `${long(found.length)} of ${count(entries.length, "operation")}`;
  }
  function grow(number) {
    const next = found.slice(shown, shown + number);
    shown += next.length;
    list.append(...next.map(row));
    more.hidden = shown >= found.length;
    if (!found.length) list.append(h("li.none", "No matches. Try fewer words, or another source."));
  }
  place.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [search, ...list.querySelectorAll("a")], at = all.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    all[at + step]?.focus();
  });
  changed();
  state.listed = location.hash;
  return { changed };
}

// What is called so comes before what only speaks of it.
const rank = (each, words) => (words.every((word) => each.id.toLowerCase().includes(word)) ? 0 : 1);

function options(select, all, names, chosen) {
  show(select, h("option", { value: "" }, all), names.filter(Boolean).sort().map((each) => h("option", { value: each, selected: each === chosen }, each)));
}

function row(each) {
  const link = to("operations", each.id, h("span.id", each.id));
  link.append(h("span", { class: `kind ${each.type}` }, each.type), h("span.words", firstLine([...new Set([each.title, each.description])].filter(Boolean).join(" · "))));
  return h("li", link);
}

const firstLine = (text) => shortened(text.split("\n", 1)[0], 160);
