// The frame around the pages: which page an address means, the links between them, and who is calling.

import { askForToken, documentOf, value } from "./api.js";
import { announce, button, empty, failed, h, show } from "./dom.js";
import { operationsPage } from "./operations.js";

const GIVE = "Enter a token";
const READ = "A token with the scope enfold:read is required.";
// The name and title of each page, the operation that it shows, and what is needed where there is none.
const PAGES = [
  ["overview", "Overview"],
  ["operations", "Operations"],
  ["sources", "Sources", "enfold.sources", READ],
  ["calls", "Calls", "enfold.calls", READ],
  ["agents", "Agents", "enfold.operations.search", READ],
  ["runs", "Runs", "enfold.runs", "Runs are stored if the server was started with --provenance --store FILE. With authentication, a token with the scope enfold:read is required."],
  ["tasks", "Tasks", "enfold.tasks.list", "Tasks require a task store. With authentication, a token is required."],
];
// What most people see first is here at once; every other page comes when it is opened, or when there is nothing else to do.
const fetched = async (name) => (await import(`./${name}.js`))[`${name}Page`];
const LIVE = ["overview", "sources", "calls", "tasks"];
const MOST_KEPT = 10;

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const who = document.getElementById("who");

// What the pages share: the outline of all operations, and which of the server's own this caller may use.
const state = { operations: [], own: new Set(["enfold.sources", "enfold.calls"]), about: null, rest: null, query: null };

let current = null; // the page that is shown: its place, `ended` and `changed`
let trouble = null; // why nothing can be shown
let turn = 0;
let isReady = false;
const kept = new Map(); // pages as they were left, to restore them

async function learn() {
  await learnOperations(); // alone: a wrong token is tried once
  state.rest = learnRest();
  state.rest.catch(() => {}); // each page that waits for it tells
}

async function learnOperations() {
  const all = await documentOf({ outline: "true" });
  state.title = all.info.title;
  show(document.getElementById("title"), state.title);
  const found = outline(all);
  if (JSON.stringify(found) === JSON.stringify(state.operations)) return;
  state.operations = found;
  current?.changed?.();
}

// What the list of operations does not wait for: which of the server's own there are, and who is calling.
async function learnRest() {
  state.own = new Set(outline(await documentOf({ outline: "true", namespace: "enfold" })).map((each) => each.id));
  state.about = state.own.has("enfold.about") ? await value("enfold.about").catch(() => null) : null;
  const caller = state.about?.caller;
  show(who, caller ? caller.id : state.own.has("enfold.sources") ? "Anonymous" : GIVE);
  who.title = caller ? `Scopes: ${caller.scopes.join(" ") || "none"}` : GIVE;
  links();
}

function outline(document) {
  return Object.values(document.paths).map(({ post }) => ({
    id: post.operationId,
    title: post.summary || "",
    description: post.description || "",
    tags: post.tags || [],
    type: post["x-enfold-type"],
    source: post["x-enfold-source"],
    mcp: post["x-mcp-kind"],
  }));
}

const here = () => location.hash.replace(/^#\/?|\?.*$/gs, "").split("/").filter(Boolean).map(safelyDecoded);

function links() {
  const [page = "operations"] = here();
  show(nav, PAGES.filter(([, , needs]) => !needs || state.own.has(needs)).map(([name, title]) =>
    h("a", { href: `#/${name}`, "aria-current": name === page ? "page" : null }, title)));
}

async function route() {
  if (!isReady && !trouble) return; // what is there is not known yet
  const mine = ++turn, isFirst = !current && !trouble;
  if (current) {
    current.ended?.();
    Object.assign(current, { y: scrollY, focus: document.activeElement });
    current = null;
  }
  if (!history.state?.key) history.replaceState({ key: `${Date.now()}-${mine}` }, "");
  const { key } = history.state, known = kept.get(key);
  const [page = "operations", ...rest] = here();
  links();
  const [, title, needs, how] = PAGES.find(([name]) => name === page) || [];
  const isList = page === "operations" && !rest.length;
  document.title = `${rest.length ? rest.join("/") : title || "Nothing"} · ${state.title || "Enfold"}`;
  if (!title) put(empty("Page not found", h("a", { href: "#/operations" }, "Show operations")));
  else if (trouble) put(trouble());
  else if (known) {
    current = known;
    put(known.place);
    known.changed?.();
    scrollTo(0, known.y);
    (main.contains(known.focus) ? known.focus : main).focus({ preventScroll: true });
  } else {
    main.setAttribute("aria-busy", "true");
    try {
      if (!isList) await state.rest;
      state.query = new URLSearchParams(location.hash.split("?")[1]);
      const place = h("div");
      let made = null;
      if (needs && !state.own.has(needs)) show(place, empty(`${title} are not available to you`, how, " ", button(GIVE, giveToken, "quiet")));
      else made = await (isList ? operationsPage : await fetched(page === "operations" ? "operation" : page))(place, rest, state);
      if (mine !== turn) { made?.ended?.(); return; }
      current = { place, ...made };
      if (made && !LIVE.includes(page)) kept.set(key, current);
      if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
      put(place);
      scrollTo(0, 0);
      if (!isFirst) main.focus({ preventScroll: true });
    } catch (error) {
      // A browser asks once for a module: where one was not to be had, all of them are asked for anew.
      if (mine === turn) put(h("div", rest.length > 0 && h("p.crumbs", h("a", { href: `#/${page}` }, title)), failed(error, error.code ? route : () => location.reload())));
    }
  }
  if (isList && !isFirst && !trouble) learnOperations().catch(() => {}); // others may have come meanwhile
  announce(document.title);
}

function put(element) {
  show(main, element);
  main.setAttribute("data-at", location.hash);
  main.removeAttribute("aria-busy");
}

function safelyDecoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function start() {
  isReady = false;
  trouble = null;
  kept.clear();
  try {
    await learn();
    isReady = true;
  } catch (error) {
    const isLocked = error.code === "ACCESS_DENIED";
    trouble = () => (isLocked ? empty("This server requires a token", "It has no public operations. ", button(GIVE, giveToken)) : failed(error, start));
    if (isLocked) who.textContent = GIVE;
  }
  await route();
  (window.requestIdleCallback || setTimeout)(() => ["operation", ...PAGES.map(([name]) => name)].filter((name) => name !== "operations").forEach((name) => fetched(name).catch(() => {})));
}

async function giveToken() {
  if (await askForToken()) await start();
}

history.scrollRestoration = "manual";
who.addEventListener("click", giveToken);
addEventListener("token", giveToken);
addEventListener("caller", () => { kept.clear(); if (isReady) learn().catch(() => {}); });
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  const wanted = event.key === "Enter" && (event.ctrlKey || event.metaKey) ? ".call button.primary" : event.key === "/" && !typing && !event.ctrlKey && !event.metaKey ? "input[type=search]" : null;
  const found = wanted && main.querySelector(wanted);
  if (!found) return;
  event.preventDefault();
  found[event.key === "/" ? "focus" : "click"]();
});
start();
