// The frame around the pages: which page an address means, the links between them, and who is calling.

import { askForToken, documentOf, value } from "./api.js";
import { announce, empty, failed, h, show } from "./dom.js";
import { operationPage } from "./operation.js";
import { operationsPage } from "./operations.js";
import { callsPage } from "./calls.js";
import { runsPage } from "./runs.js";
import { sourcesPage } from "./sources.js";
import { tasksPage } from "./tasks.js";

const PAGES = [
  ["operations", "Operations", null],
  ["sources", "Sources", "enfold.sources"],
  ["calls", "Calls", "enfold.calls"],
  ["runs", "Runs", "enfold.runs"],
  ["tasks", "Tasks", "enfold.tasks.list"],
];
const SHOWN = { operations: operationsPage, sources: sourcesPage, calls: callsPage, runs: runsPage, tasks: tasksPage };

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const who = document.getElementById("who");

// What the pages share: the outline of all operations, and which of the server's own this caller may use.
export const state = { operations: [], own: new Set(), about: null };

let leave = null;
let turn = 0;
let isReady = false;

async function learn() {
  // One after the other: a wrong token is tried once.
  const all = await documentOf({ outline: "true" });
  const own = await documentOf({ outline: "true", namespace: "enfold" });
  state.title = all.info.title;
  state.operations = outline(all);
  state.own = new Set(outline(own).map((each) => each.id));
  document.getElementById("title").textContent = state.title;
  try {
    state.about = await value("enfold.about");
  } catch {
    state.about = null;
  }
  who.textContent = state.about?.caller ? state.about.caller.id : "Anonymous";
  who.title = state.about?.caller ? `Scopes: ${state.about.caller.scopes.join(" ") || "none"}` : "Give a token";
}

export function outline(document) {
  return Object.values(document.paths).map(({ post }) => ({
    id: post.operationId,
    title: post.summary || "",
    description: post.description || "",
    tags: post.tags || [],
    type: post["x-enfold-type"],
    kind: post["x-enfold-kind"],
    destructive: post["x-enfold-destructive"],
    source: post["x-enfold-source"],
  }));
}

function links(page) {
  show(nav, PAGES.filter(([, , needs]) => !needs || state.own.has(needs)).map(([name, title]) =>
    h("a", { href: `#/${name}`, "aria-current": name === page ? "page" : null }, title)));
}

async function route() {
  const mine = ++turn;
  leave?.();
  leave = null;
  const [page = "operations", ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(safelyDecoded);
  links(page);
  main.setAttribute("aria-busy", "true");
  const make = page === "operations" && rest.length ? operationPage : SHOWN[page];
  if (!make) {
    put(empty("There is no such page", h("a", { href: "#/operations" }, "See the operations")));
    return;
  }
  const title = PAGES.find(([name]) => name === page)[1];
  document.title = `${rest.length ? rest.join("/") : title} · ${state.title || "Enfold"}`;
  try {
    const place = h("div", { class: `page ${page}` });
    const ended = await make(place, rest, state);
    if (mine !== turn) { ended?.(); return; }
    leave = ended;
    put(place);
    announce(document.title);
    scrollTo(0, 0);
  } catch (error) {
    if (mine === turn) put(failed(error, route));
  }
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
  try {
    await learn();
    isReady = true;
  } catch (error) {
    links("");
    show(main, failed(error, start));
    return;
  }
  await route();
}

who.addEventListener("click", async () => { if (await askForToken()) await start(); });
addEventListener("caller", () => isReady && learn().then(() => links(location.hash.split("/")[1] || "operations")).catch(() => {}));
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  }
});
start();
