// One operation: what it says of itself, a form, its answer, the same call for other clients, and its details.

import { base, call, documentOf, stream, token, value } from "./api.js";
import { announce, bring, button, chip, copied, copyButton, count, empty, h, long, note, show, table, tabs } from "./dom.js";
import { lost, read, schemaForm } from "./form.js";
import { write } from "./json.js";
import { answerView, briefly, failureView, from } from "./result.js";
import { running as runningView } from "./running.js";
import { resolver, schemaView } from "./schema.js";

const MOST_ITEMS = 200, LONGEST_LINK = 8000;

export async function operationPage(place, [id], state) {
  const crumbs = h("p.crumbs", h("a", { href: state.listed || "#/operations" }, "Operations"));
  const [found, details] = await Promise.all([documentOf({ operation: id }), state.own.has("enfold.operations.get") ? value("enfold.operations.get", { id }).catch(() => null) : null]);
  const item = found.paths[`/functions/${id}`]?.post;
  if (!item) {
    show(place, crumbs, empty("Operation not found", "It does not exist, or you may not call it. ", button("Enter a token", () => dispatchEvent(new Event("token")), "quiet")));
    return null;
  }
  const resolve = resolver(found), schema = item.requestBody.content["application/json"].schema;
  const form = schemaForm(schema, resolve);
  const plain = h("textarea.code", { rows: "10", "aria-label": "The input as JSON" });
  const fault = h("p.fault", { role: "alert", hidden: true });
  const area = h("div", { oninput: renew, onchange: renew, onclick: renew }, form.element);
  const asJSON = h("input", { type: "checkbox", role: "switch", onchange: swap });
  const isStream = item["x-enfold-type"] === "subscription", isDurable = "202" in item.responses;
  const record = !isStream && state.own.has("enfold.runs") && h("input", { type: "checkbox" });
  const answer = h("div.answers", { "aria-live": "polite" });
  const run = h("button.primary", { onclick: () => go(false) }, isStream ? "Subscribe" : "Call", h("kbd", { "aria-hidden": "true" }, "Ctrl ⏎"));
  let running = null;

  const input = () => (asJSON.checked ? read(plain.value || "{}") : form.value());
  function swap() {
    const isJSON = asJSON.checked;
    asJSON.checked = !isJSON; // until it is known that nothing is lost
    try {
      const given = input();
      if (isJSON) plain.value = write(given, 2);
      else {
        form.set(given);
        const gone = lost(given, form.value());
        if (gone) throw new Error(`The form cannot show ${gone}: it stays in JSON.`);
      }
      asJSON.checked = isJSON;
      show(area, isJSON ? plain : form.element);
      tell([]);
    } catch (error) {
      told(error);
    }
    renew();
  }
  const told = (error) => tell(error.faults || [{ message: error.message }]);
  function tell(faults) {
    const rest = asJSON.checked ? faults : form.tell(faults);
    fault.textContent = rest.map((each) => each.message).join(" ");
    fault.hidden = !rest.length;
  }
  // Where the answer stands below a long form, it comes to who asked.
  function present(...shown) {
    show(answer, shown);
    bring(answer);
  }
  async function go(asTask) {
    running?.abort();
    const mine = (running = new AbortController());
    let given;
    try {
      given = input();
      tell([]);
    } catch (error) {
      told(error);
      return;
    }
    if (isStream) { follow(given, mine); return; }
    const view = runningView(() => mine.abort());
    present(view.element);
    try {
      const outcome = await call(id, given, { signal: mine.signal, told: asTask ? null : view.told, headers: { ...(record.checked ? { "enfold-capture-provenance": "full" } : {}), ...(asTask ? { prefer: "respond-async" } : {}) } });
      if (mine !== running) return;
      if (outcome.status === 202) { show(answer); location.hash = `#/tasks/${encodeURIComponent(outcome.envelope.taskId)}`; return; }
      present(answerView(outcome, record), !view.log.hidden && view.log);
    } catch (error) {
      if (mine !== running) return;
      if (error.name === "AbortError") { show(answer, h("p.dim.placeholder", "Cancelled. The server was told to stop the call."), !view.log.hidden && view.log); announce("Cancelled"); return; }
      present(failureView(error), !view.log.hidden && view.log);
      tell(faultsOf(error));
    } finally {
      view.stop();
    }
  }
  function follow(given, mine) {
    let number = 0, lastId = null, held = null, release = null, fresh = [];
    const status = h("span.chip", { role: "status" });
    const many = chip("no items yet");
    const list = h("ol.stream", { reversed: true, "aria-label": "Items, newest first" });
    const pause = button("Pause", () => {
      if (held) { carryOn(); return; }
      held = new Promise((resolve) => (release = resolve));
      pause.textContent = "Resume";
      say("paused");
    });
    const stop = button("Stop", () => { mine.abort(); release?.(); });
    const again = button("", () => { running = mine = new AbortController(); if (!lastId) { number = 0; show(list); } open(lastId); });
    const say = (words, kind = "") => { status.textContent = words; status.className = `chip ${kind}`; };
    const carryOn = () => { release?.(); held = release = null; pause.textContent = "Pause"; say("open", "good"); };
    present(h("section.answer", { "aria-label": "Stream" }, h("p.summary", status, many, pause, stop, again), list));
    // Once a frame, and of many items only the newest: a stream may be faster than anybody reads.
    function draw() {
      const made = fresh.slice(-MOST_ITEMS).reverse().map(([place, { data, meta, warnings = [] }, time]) => h("li", { value: place },
        note(`${time.toLocaleTimeString()} · ${from(meta)}`, warnings.length > 0 && ` · ${count(warnings.length, "warning")}`), briefly(data, meta)));
      fresh = [];
      many.textContent = count(number, "item");
      list.prepend(...made);
      while (list.children.length > MOST_ITEMS) list.lastChild.remove();
    }
    async function open(at) {
      pause.hidden = stop.hidden = false;
      again.hidden = true;
      carryOn();
      try {
        await stream(id, given, { signal: mine.signal, from: at, gate: () => held, item(wire, eventId) {
          if (item["x-enfold-resumable"]) lastId = eventId || lastId;
          if (fresh.push([++number, wire, new Date()]) === 1) requestAnimationFrame(draw);
          if (fresh.length > 2 * MOST_ITEMS) fresh.splice(0, MOST_ITEMS);
        } });
        draw();
        lastId = null;
        say("complete", "good");
      } catch (error) {
        draw();
        if (error.name === "AbortError") say("stopped");
        else { say(error.code, "bad"); list.prepend(h("li.failure", error.message)); if (!number) tell(faultsOf(error)); }
      }
      pause.hidden = stop.hidden = true;
      again.hidden = false;
      again.textContent = lastId ? "Resume" : "Start again"; // only what can be resumed goes on where it was
    }
    open(null);
  }

  const same = tabs("The same call in other clients", ["curl", "Python", "Shell", "MCP"].map((name) => [name, () => {
    let text;
    try { text = SNIPPETS[name](url(`functions/${encodeURIComponent(id)}`), input(), item, isStream, state); } catch { text = "The input is incomplete."; }
    return copied(text);
  }]));
  const others = h("details.same", { ontoggle: renew }, h("summary", "The same call in other clients"), same.element);
  function renew() { if (others.open) same.choose(); }
  // Takes an input into the form, or, where the form cannot show it, as JSON.
  function fill(given) {
    asJSON.checked = false;
    show(area, form.element);
    form.set(given);
    let isKept = false;
    try { isKept = !lost(given, form.value()); } catch { /* it stays as JSON */ }
    if (!isKept) { plain.value = write(given, 2); asJSON.checked = true; show(area, plain); }
    tell([]);
    renew();
  }
  const link = copyButton("Copy link", () => linkTo(id, open(input(), schema, resolve)));
  link.title = "A link to this page with the input; secrets are left out";
  const examples = details?.examples || [];
  const security = item.security && (item.security.some((each) => Object.values(each).flat().length) ? `needs the scope ${item.security.map((each) => Object.values(each).flat().join(" and ")).join(", or ")}` : "needs a token");
  show(place, crumbs,
    h("div.heading", h("h1.id", id), h("span", { class: `kind ${item["x-enfold-type"]}` }, item["x-enfold-type"]), isDurable && h("span.kind", "durable"), item["x-enfold-destructive"] && h("span.kind.bad", "destructive")),
    item.summary && h("p", item.summary),
    item.description && h("p.description", item.description),
    note([`from ${[...new Set([item["x-enfold-source"], item["x-enfold-kind"]])].filter(Boolean).join(", ")}`, item["x-mcp-tool"] && `MCP tool ${item["x-mcp-tool"]}`, item.tags?.some((each) => !id.startsWith(`${each}.`)) && `tags ${item.tags.join(", ")}`, security].filter(Boolean).join(" · ")),
    h("div.columns", {},
      h("section.call", { "aria-label": "Input" }, h("div.bar", h("h2", "Input"), examples.length > 0 && h("span.grow"), examples.length > 0 && button("Fill in the example", () => { fill(examples[0]); form.element.querySelector("input, select, textarea")?.focus(); }, "quiet"), h("label.switch", asJSON, "JSON")), area, fault,
        h("div.row", run, isDurable && button("Run as a task", () => go(true)), record && h("label.switch", record, "Record this run"), link), others),
      answer), about(item, details, resolve, id));
  show(answer, h("p.dim.placeholder", isStream ? "Items appear here as they arrive." : "The result appears here."));
  const sent = state.query.get("input");
  if (sent) {
    try { fill(read(sent)); } catch (error) { told(error); }
  }
  return { ended: () => running?.abort() };
}

// What an operation gives, how it can fail, what it needs, and what a model reads of it.
function about(item, details, resolve, id) {
  const content = item.responses["200"]?.content || {}, written = content["application/json"]?.schema || Object.values(content)[0]?.schema;
  const errors = details?.errors || Object.entries(item.responses).flatMap(([status, each]) => (each["x-enfold-errors"] || []).map((one) => ({ ...one, http_status: Number(status) })));
  const parts = [["Output", () => (details ? schemaView(details.output_schema, resolver(details.output_schema)) : schemaView(written, resolve))],
    [`Errors (${errors.length})`, () => [errors.length > 0 ? table("Declared errors", [["Code"], ["Meaning"], ["HTTP", true], ["Category"]], h("tbody", errors.map((each) => h("tr", h("td.id", each.code), h("td", each.description || ""), h("td.end", each.http_status), h("td", [each.category, each.recoverable && "can be retried"].filter(Boolean).join(", ")))))) : note("No error codes are declared."), note("Every operation can also fail with the common codes, such as VALIDATION_ERROR, ACCESS_DENIED, TIMEOUT or UNAVAILABLE.")]]];
  if (details) {
    if (details.examples.length) parts.push([`Examples (${details.examples.length})`, () => details.examples.slice(0, 10).map((each) => copied(write(each, 2)))]);
    parts.push(["Limits and access", () => limitsOf(details)]);
    if (details.tool) parts.push(["As a model sees it", () => [h("p.summary", chip(`≈ ${long(details.tokens)} tokens`, "good"), h("span", "in tools/list, an estimate"), h("a", { href: `#/agents/${encodeURIComponent(id)}` }, "Try it as an agent")), h("h3", "Name"), copied(details.tool.name), h("h3", "Description"), details.tool.description ? copied(details.tool.description) : note("None: a model has only the name to go by."), h("h3", "Whole definition"), copied(write(details.tool, 2))]]);
  }
  return h("section.about", h("h2", "About this operation"), tabs("About this operation", parts).element);
}

function limitsOf(details) {
  const { scopes, any_scope: any, resource, timeout } = details;
  const needs = [scopes.length > 0 && scopes.join(" and "), any.length > 0 && `one of: ${any.join(", ")}`, resource && `access to ${resource}`].filter(Boolean);
  return h("dl.facts", [["Scopes", needs.join("; ") || (details.is_public ? "None: callers need no token" : "None")], ["Time limit", timeout == null ? "None" : `${timeout} s`], ["Can be repeated", details.idempotent ? "Yes: a second call changes nothing more" : "No: send an idempotency key to repeat a call safely"],
    ["As a task", { never: "No", optional: "Yes, on request", required: "Always" }[details.durable] || details.durable], ["Default fields", details.select || "All"]].map(([name, words]) => [h("dt", name), h("dd", words)]));
}

// A link never holds what the schema calls a secret.
function open(input, schema, resolve) {
  const properties = (schema.$ref ? resolve(schema.$ref) : schema).properties || {};
  const isSecret = (each) => each?.format === "password" || each?.writeOnly === true;
  return Object.fromEntries(Object.entries(input).filter(([name]) => !isSecret(Object.hasOwn(properties, name) ? properties[name] : null)));
}

function linkTo(id, input) {
  const address = `${location.href.split("#")[0]}#/operations/${encodeURIComponent(id)}?${new URLSearchParams({ input: write(input) })}`;
  if (address.length > LONGEST_LINK) throw new Error("This input is too long for a link");
  return address;
}

function faultsOf(error) {
  const { argument, more = [] } = error.details || {};
  if (error.code !== "VALIDATION_ERROR" || argument === undefined) return [];
  const all = [{ argument, ...error.details }, ...more];
  return all.filter((each) => each.argument).map((each) => ({ argument: each.argument, message: all.length === 1 ? error.message : words(each) }));
}

function words({ argument, reason, expected }) {
  if (reason === "missing") return `${argument} is missing${expected ? ` (${expected})` : ""}.`;
  if (reason === "unknown") return `${argument} is unknown.`;
  return `${argument} must be ${expected}.`;
}

// --- the same call for other clients

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const plainWord = (text) => (/^[\w.:/-]+$/.test(text) ? text : quoted(text));
const url = (path) => String(new URL(path, base));

const PYTHON = { true: "True", false: "False", null: "None", ",": ", ", ":": ": " }; // what Python writes otherwise than JSON
const python = (value) => write(value).replace(/"(?:[^"\\]|\\.)*"|true|false|null|[,:]/g, (each) => PYTHON[each] || each);

const SNIPPETS = {
  curl: (place, input, item, isStream) => [`curl -s${isStream ? "N" : ""} ${quoted(place)}`, `-H 'Content-Type: application/json'`,
    token.get() && `-H "Authorization: Bearer $ENFOLD_TOKEN"`, `-d ${quoted(write(input))}`].filter(Boolean).join(" \\\n  "),
  Python: (place, input, item, isStream) => {
    const headers = `{"Content-Type": "application/json"${token.get() ? `, "Authorization": "Bearer " + os.environ["ENFOLD_TOKEN"]` : ""}}`;
    return [`import json${token.get() ? ", os" : ""}`, "from urllib.request import Request, urlopen", "", `arguments = ${python(input)}`,
      `request = Request(${JSON.stringify(place)}, json.dumps(arguments).encode(), ${headers})`, "with urlopen(request) as answer:",
      isStream ? "    for line in answer:\n        print(line.decode(), end=\"\")" : "    print(json.load(answer)[\"result\"])"].join("\n");
  },
  // Where no MCP server is beside the functions, the document leads to them, by the same names.
  Shell: (place, input, item, isStream, { about }) => [`enfold call ${plainWord(url(about?.surfaces.some((each) => each.name === "mcp") ? "mcp" : "openapi.json"))} ${plainWord(item["x-mcp-tool"])}`,
    ...Object.entries(input).map(([name, value]) => (typeof value === "string" ? plainWord(`${name}=${value}`) : quoted(`${name}:=${write(value)}`)))].join(" "),
  MCP: (place, input, item) => write({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: item["x-mcp-tool"], arguments: input } }, 2),
};
