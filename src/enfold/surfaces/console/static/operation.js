// One operation: what it says of itself, a form, its answer, and the same call for other clients.

import { base, call, documentOf, stream, token } from "./api.js";
import { button, chip, copied, count, empty, h, note, show, tabs } from "./dom.js";
import { lost, read, schemaForm } from "./form.js";
import { write } from "./json.js";
import { answerView, briefly, failureView, from } from "./result.js";

const MOST_ITEMS = 200;

export async function operationPage(place, [id], state) {
  const crumbs = h("p.crumbs", h("a", { href: state.listed || "#/operations" }, "Operations"));
  const found = await documentOf({ operation: id });
  const item = found.paths[`/functions/${id}`]?.post;
  if (!item) {
    show(place, crumbs, empty("Operation not found", "It does not exist, or you may not call it. ", button("Enter a token", () => dispatchEvent(new Event("token")), "quiet")));
    return null;
  }
  const resolve = (reference) => reference.split("/").slice(1).reduce((at, part) => at?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")], found) || {};
  const form = schemaForm(item.requestBody.content["application/json"].schema, resolve);
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
    if (answer.getBoundingClientRect().top > innerHeight - 120) answer.scrollIntoView({ block: "start" });
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
    present(h("p.waiting", "Waiting for the response… ", button("Cancel waiting", () => mine.abort())));
    try {
      const outcome = await call(id, given, { signal: mine.signal, headers: { ...(record.checked ? { "enfold-capture-provenance": "full" } : {}), ...(asTask ? { prefer: "respond-async" } : {}) } });
      if (mine !== running) return;
      if (outcome.status === 202) { show(answer); location.hash = `#/tasks/${encodeURIComponent(outcome.envelope.taskId)}`; return; }
      present(answerView(outcome, record));
    } catch (error) {
      if (mine !== running) return;
      if (error.name === "AbortError") { show(answer, h("p.dim", "You stopped waiting.")); return; }
      present(failureView(error), isDurable && /client that offers/.test(error.message) && h("p", "This operation asks questions. Run it as a task, and answer on the page of the task."));
      tell(faultsOf(error));
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
  const details = h("details.same", { ontoggle: renew }, h("summary", "The same call in other clients"), same.element);
  function renew() { if (details.open) same.choose(); }
  const security = item.security && `needs ${item.security.map((each) => Object.values(each).flat().join(" and ")).join(", or ") || "an identity"}`;
  show(place, crumbs,
    h("div.heading", h("h1.id", id), h("span", { class: `kind ${item["x-enfold-type"]}` }, item["x-enfold-type"]), isDurable && h("span.kind", "durable"), item["x-enfold-destructive"] && h("span.kind.bad", "destructive")),
    item.summary && h("p", item.summary),
    item.description && h("p.description", item.description),
    note([`from ${[...new Set([item["x-enfold-source"], item["x-enfold-kind"]])].filter(Boolean).join(", ")}`, item["x-mcp-tool"] && `MCP tool ${item["x-mcp-tool"]}`, item.tags?.some((each) => !id.startsWith(`${each}.`)) && `tags ${item.tags.join(", ")}`, security].filter(Boolean).join(" · ")),
    h("div.columns", {},
      h("section.call", { "aria-label": "Input" }, h("div.bar", h("h2", "Input"), h("label.switch", asJSON, "JSON")), area, fault,
        h("div.row", run, isDurable && button("Run as a task", () => go(true)), record && h("label.switch", record, "Record this run")), details),
      answer));
  show(answer, h("p.dim.placeholder", isStream ? "Items appear here as they arrive." : "The result appears here."));
  return { ended: () => running?.abort() };
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
