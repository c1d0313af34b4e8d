// One operation: what it says of itself, a form, its answer, and the same call for other clients.

import { base, call, documentOf, stream, token } from "./api.js";
import { announce, copyButton, count, empty, h, show, tabs } from "./dom.js";
import { NotJSON, read, schemaForm } from "./form.js";
import { answerView, briefly, failureView, from } from "./result.js";

const MOST_ITEMS = 200;

export async function operationPage(place, [id], state) {
  const found = await documentOf({ operation: id });
  const item = found.paths[`/functions/${id}`]?.post;
  if (!item) {
    show(place, empty("There is no such operation", "It is not there, or whoever you are here may not call it. ", h("a", { href: "#/operations" }, "See all operations")));
    return null;
  }
  const resolve = (reference) => reference.split("/").slice(1).reduce((at, part) => at?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")], found) || {};
  const form = schemaForm(item.requestBody.content["application/json"].schema, resolve);
  const plain = h("textarea", { class: "code", rows: "10", spellcheck: "false", "aria-label": "The input as JSON" });
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const area = h("div", {}, form.element);
  const asJSON = h("input", { type: "checkbox", role: "switch", onchange: () => swap() });
  const record = state.own.has("enfold.runs") && h("input", { type: "checkbox" });
  const answer = h("div", { class: "answers", "aria-live": "polite" });
  const isStream = item["x-enfold-type"] === "subscription";
  const run = h("button", { type: "button", class: "primary", onclick: go }, isStream ? "Subscribe" : "Call", h("kbd", { "aria-hidden": "true" }, "Ctrl ⏎"));
  let running = null;

  function input() {
    return asJSON.checked ? read(plain.value || "{}", { path: "" }) : form.value();
  }
  function swap() {
    try {
      tell([]);
      if (asJSON.checked) { plain.value = JSON.stringify(form.value(), null, 2); show(area, plain); plain.focus(); }
      else { form.set(read(plain.value || "{}", { path: "" })); show(area, form.element); }
    } catch (error) {
      asJSON.checked = !asJSON.checked;
      tell(error.faults || [{ argument: "", message: error.message }]);
    }
  }
  function tell(faults) {
    const lost = asJSON.checked ? faults : form.tell(faults);
    fault.textContent = lost.map((each) => each.message).join(" ");
    fault.hidden = !lost.length;
  }
  async function go() {
    running?.abort();
    const mine = (running = new AbortController());
    let given;
    try {
      given = input();
      tell([]);
    } catch (error) {
      tell(error instanceof NotJSON ? error.faults : [{ argument: "", message: error.message }]);
      return;
    }
    if (isStream) { follow(given, mine); return; }
    const stop = h("button", { type: "button", onclick: () => mine.abort() }, "Give up");
    show(answer, h("p", { class: "waiting" }, "Waiting for the answer… ", stop));
    try {
      const outcome = await call(id, given, { signal: mine.signal, headers: record && record.checked ? { "enfold-capture-provenance": "full" } : {} });
      if (mine === running) show(answer, answerView(outcome));
      announce("The answer is there");
    } catch (error) {
      if (mine !== running) return;
      if (error.name === "AbortError") { show(answer, h("p", { class: "dim" }, "You gave up waiting.")); return; }
      show(answer, failureView(error));
      tell(faultsOf(error));
    }
  }
  function follow(given, mine) {
    let number = 0, lastId = null, held = null, release = null;
    const told = h("span", { class: "chip", role: "status" }, "open");
    const many = h("span", { class: "chip" }, "no items yet");
    const list = h("ol", { class: "stream", reversed: true, "aria-label": "Items, newest first" });
    const pause = h("button", { type: "button", onclick() {
      if (held) { release(); held = null; pause.textContent = "Pause"; state("open"); }
      else { held = new Promise((resolve) => (release = resolve)); pause.textContent = "Resume"; state("paused"); }
    } }, "Pause");
    const stop = h("button", { type: "button", onclick: () => mine.abort() }, "Stop");
    const again = h("button", { type: "button", hidden: true, onclick() { running = mine = new AbortController(); open(item["x-enfold-resumable"] ? lastId : null); } }, "Resume");
    const state = (words, kind = "") => { told.textContent = words; told.className = `chip ${kind}`; };
    show(answer, h("section", { class: "answer", "aria-label": "Stream" }, h("p", { class: "summary" }, told, many, pause, stop, again), list));
    async function open(at) {
      pause.hidden = stop.hidden = false;
      again.hidden = true;
      state("open", "good");
      try {
        await stream(id, given, { signal: mine.signal, from: at, gate: () => held, item(wire, eventId) {
          number += 1;
          if (eventId) lastId = eventId;
          many.textContent = count(number, "item");
          list.prepend(h("li", { value: String(number) }, h("p", { class: "dim small" }, `${new Date().toLocaleTimeString()} · ${from(wire.meta)}`, wire.warnings?.length ? ` · ${count(wire.warnings.length, "warning")}` : ""), briefly(wire.data, wire.meta)));
          while (list.children.length > MOST_ITEMS) list.lastChild.remove();
        } });
        state("complete", "good");
      } catch (error) {
        if (error.name === "AbortError") state("stopped");
        else { state(error.code, "bad"); list.prepend(h("li", { class: "failure", dir: "auto" }, error.message)); if (!number) tell(faultsOf(error)); }
      }
      pause.hidden = stop.hidden = true;
      again.hidden = false;
    }
    open(null);
  }
  const keys = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); go(); } };
  addEventListener("keydown", keys);

  const examples = ["curl", "Python", "Shell", "MCP"].map((name) => [name, () => {
    let text;
    try { text = SNIPPETS[name](id, input(), item, isStream); } catch { text = "The input is not JSON yet."; }
    return [copyButton(() => text), h("pre", { class: "raw", tabindex: "0" }, text)];
  }]);
  const same = tabs("The same call elsewhere", examples);
  const details = h("details", { class: "same", ontoggle() { if (details.open) same.choose(0); } }, h("summary", {}, "The same call from elsewhere"), same.element);
  show(place,
    h("p", { class: "crumbs" }, h("a", { href: "#/operations" }, "Operations")),
    h("div", { class: "heading" }, h("h1", { class: "id" }, id), h("span", { class: `kind ${item["x-enfold-type"]}` }, item["x-enfold-type"]), item["x-enfold-destructive"] && h("span", { class: "kind bad" }, "destructive")),
    item.summary && h("p", { class: "lead", dir: "auto" }, item.summary),
    item.description && h("p", { class: "description", dir: "auto" }, item.description),
    h("p", { class: "dim small" }, [`from ${[item["x-enfold-source"], item["x-enfold-kind"]].filter(Boolean).join(", ")}`, item["x-mcp-tool"] && `MCP tool ${item["x-mcp-tool"]}`, item.tags?.some((each) => !id.startsWith(`${each}.`)) && `tags ${item.tags.join(", ")}`, item.security && `needs ${item.security.map((each) => Object.values(each).flat().join(" and ")).join(", or ") || "an identity"}`].filter(Boolean).join(" · ")),
    h("div", { class: "columns" },
      h("section", { class: "call", "aria-label": "Input" }, h("div", { class: "bar" }, h("h2", {}, "Input"), h("label", { class: "switch" }, asJSON, "JSON")), area, fault,
        h("div", { class: "row" }, run, record && h("label", { class: "switch" }, record, "Record this run")), details),
      answer));
  show(answer, h("p", { class: "dim placeholder" }, isStream ? "Items appear here as they come." : "The answer appears here."));
  return () => { removeEventListener("keydown", keys); running?.abort(); };
}

function faultsOf(error) {
  const { argument, more = [] } = error.details || {};
  if (error.code !== "VALIDATION_ERROR" || argument === undefined) return [];
  const all = [{ argument, ...error.details }, ...more];
  return all.filter((each) => each.argument).map((each, place) => ({ argument: each.argument, message: all.length === 1 ? error.message : words(each) }));
}

function words({ argument, reason, expected }) {
  if (reason === "missing") return `${argument} is missing${expected ? ` (${expected})` : ""}.`;
  if (reason === "unknown") return `${argument} is not known here.`;
  return `${argument} must be ${expected}.`;
}

// --- the same call for other clients ------------------------------------------------------------------------------

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

const python = (value) => value === null ? "None" : value === true ? "True" : value === false ? "False"
  : Array.isArray(value) ? `[${value.map(python).join(", ")}]`
  : typeof value === "object" ? `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${python(each)}`).join(", ")}}` : JSON.stringify(value);

const SNIPPETS = {
  curl: (id, input, item, isStream) => [`curl -s${isStream ? "N" : ""} ${quoted(String(new URL(`functions/${id}`, base)))}`, `-H 'Content-Type: application/json'`,
    token.get() && `-H "Authorization: Bearer $ENFOLD_TOKEN"`, `-d ${quoted(JSON.stringify(input))}`].filter(Boolean).join(" \\\n  "),
  Python: (id, input, item, isStream) => {
    const headers = `{"Content-Type": "application/json"${token.get() ? `, "Authorization": "Bearer " + os.environ["ENFOLD_TOKEN"]` : ""}}`;
    return [`import json${token.get() ? ", os" : ""}`, "from urllib.request import Request, urlopen", "", `arguments = ${python(input)}`,
      `request = Request(${JSON.stringify(String(new URL(`functions/${id}`, base)))}, json.dumps(arguments).encode(), ${headers})`, "with urlopen(request) as answer:",
      isStream ? "    for line in answer:\n        print(line.decode(), end=\"\")" : "    print(json.load(answer)[\"result\"])"].join("\n");
  },
  Shell: (id, input) => [`enfold call TARGET ${id}`, ...Object.entries(input).map(([name, value]) => (typeof value === "string" ? quoted(`${name}=${value}`) : quoted(`${name}:=${JSON.stringify(value)}`)))].join(" "),
  MCP: (id, input, item) => JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: item["x-mcp-tool"], arguments: input } }, null, 2),
};
