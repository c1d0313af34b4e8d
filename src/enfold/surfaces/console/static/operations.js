// All operations: search as you type, filters by source and kind. Rows are made once, and hidden or shown by one pass.

import { count, empty, h, show } from "./dom.js";

const AT_ONCE = 24;

export function operationsPage(place, rest, state) {
  const saved = new URLSearchParams(sessionStorage.getItem("enfold-filter") || "");
  const entries = state.operations.map((each) => ({
    ...each,
    text: `${each.id} ${each.title} ${each.description} ${each.tags.join(" ")} ${each.source}`.toLowerCase(),
  }));
  if (!entries.length) {
    show(place, empty("There are no operations yet", "Whoever you are here may call none. A source may still be starting; or another token sees more."));
    return null;
  }
  const search = h("input", { type: "search", id: "search", placeholder: "Search by name, description, tag or source", "aria-label": "Search operations", autocomplete: "off", spellcheck: "false", value: saved.get("q") || "", oninput: filter });
  const source = choice("source", "Every source", [...new Set(entries.map((each) => each.source))], saved.get("source"), filter);
  const kind = choice("kind", "Every kind", ["query", "mutation", "subscription"], saved.get("kind"), filter);
  const told = h("p", { class: "dim small", role: "status" });
  const list = h("ul", { class: "rows", "aria-label": "Operations" });
  const more = h("button", { type: "button", class: "more", onclick: () => grow(300) }, "Show more");
  let found = entries, shown = 0;

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = entries.filter((each) => (!source.value || each.source === source.value) && (!kind.value || each.type === kind.value) && words.every((word) => each.text.includes(word)));
    if (words.length) found.sort((one, other) => rank(one, words) - rank(other, words));
    shown = 0;
    list.replaceChildren();
    grow(AT_ONCE);
    const now = found;
    requestAnimationFrame(() => { if (now === found && shown === AT_ONCE) grow(60); });
    told.textContent = found.length === entries.length ? count(entries.length, "operation") : `${found.length.toLocaleString("en")} of ${count(entries.length, "operation")}`;
    sessionStorage.setItem("enfold-filter", new URLSearchParams({ q: search.value, source: source.value, kind: kind.value }));
  }
  function grow(number) {
    const next = found.slice(shown, shown + number);
    shown += next.length;
    list.append(...next.map(row));
    more.hidden = shown >= found.length;
    if (!found.length) list.append(h("li", { class: "none" }, "Nothing fits. Try fewer words, or another source."));
  }
  search.addEventListener("keydown", (event) => { if (event.key === "ArrowDown") { event.preventDefault(); list.querySelector("a")?.focus(); } });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (!step) return;
    event.preventDefault();
    (document.activeElement.closest("li")?.[step]?.querySelector("a") || (step[0] === "p" ? search : null))?.focus();
  });
  filter();
  show(place, h("div", { class: "heading" }, h("h1", {}, "Operations"), told),
    h("div", { class: "filters", role: "search" }, search, source, kind), list, more);
  return null;
}

// What is called so comes before what only speaks of it.
const rank = (each, words) => (words.every((word) => each.id.toLowerCase().includes(word)) ? 0 : 1);

function choice(name, all, options, chosen, changed) {
  return h("select", { "aria-label": `Filter by ${name}`, onchange: changed },
    h("option", { value: "" }, all),
    options.filter(Boolean).sort().map((each) => h("option", { value: each, selected: each === chosen }, each)));
}

function row(each) {
  return h("li", {}, h("a", { href: `#/operations/${encodeURIComponent(each.id)}` },
    h("span", { class: "id" }, each.id),
    h("span", { class: `kind ${each.type}` }, each.type),
    h("span", { class: "words", dir: "auto" }, firstSentence(each.title || each.description))));
}

function firstSentence(text) {
  const line = text.split("\n", 1)[0];
  return line.length > 160 ? `${line.slice(0, 159)}…` : line;
}
