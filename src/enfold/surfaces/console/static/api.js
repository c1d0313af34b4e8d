// Everything the console asks of its server: the document, and operations by the same address as any other client.

import { button, h, note } from "./dom.js";
import { parse, write } from "./json.js";

export const base = new URL(".", location.href.split("#")[0]);
const KEY = "enfold-token";

export class CallFailure extends Error {
  constructor(code, message, details) {
    super(message);
    Object.assign(this, { code: String(code), details: details || {} });
  }
}

// The token is kept for this tab alone.
export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

let asking = null;

export function askForToken(why) {
  asking ||= new Promise((resolve) => {
    const field = h("input.secret", { type: "text", id: "token", autocomplete: "off", value: token.get() });
    // Keys pressed in the dialog stay there: Ctrl-Enter would call the operation behind it.
    const dialog = h("dialog", { "aria-labelledby": "token-title", onkeydown: (event) => event.stopPropagation(), onclose() {
      asking = null;
      dialog.remove();
      resolve(dialog.returnValue === "use");
    } });
    const use = (value) => { token.set(value.trim()); dialog.close("use"); };
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") use(field.value); });
    dialog.append(
      h("h2", { id: "token-title" }, "Authenticate"),
      h("p.dim", why || "Enter the bearer token for the calls you make here."),
      h("label", { for: "token" }, "Token"), field,
      note("It stays in this tab and is sent only to this server."),
      h("div.row",
        button("Use token", () => use(field.value), "primary"), button("Cancel", () => dialog.close("")),
        token.get() && button("Forget token", () => use(""), "quiet")));
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
  return asking;
}

async function ask(path, options = {}) {
  for (;;) {
    const used = token.get(), headers = { ...options.headers, ...(used && { authorization: `Bearer ${used}` }) };
    let answer;
    try {
      answer = await fetch(new URL(path, base), { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new CallFailure("UNAVAILABLE", "The server does not respond. Is it running?");
    }
    if (answer.status !== 401) return answer;
    if (token.get() !== used) continue;
    const why = used ? "This token is not valid here." : "This server requires a bearer token.";
    if (!(await askForToken(why))) throw await failureOf(answer);
    dispatchEvent(new Event("caller"));
  }
}

// `text` is the body of a response that has been read already.
async function failureOf(answer, text) {
  const body = text ?? (await answer.text());
  try {
    const error = parse(body).error;
    if (typeof error === "string") return new CallFailure(answer.headers.get("enfold-code") || `HTTP ${answer.status}`, error);
    return new CallFailure(error.code, error.message, error.details);
  } catch {
    return new CallFailure(`HTTP ${answer.status}`, body.slice(0, 300) || answer.statusText);
  }
}

export async function documentOf(query) {
  const answer = await ask(`openapi.json?${new URLSearchParams(query)}`);
  if (!answer.ok) throw await failureOf(answer);
  return parse(await answer.text());
}

const path = (id) => `functions/${encodeURIComponent(id)}`;
const HEADERS = { "content-type": "application/json", "enfold-format": "annotated" };
const LIVE = { accept: "text/event-stream", "enfold-answers": "elicitation", "enfold-client": [...crypto.getRandomValues(new Uint32Array(4))].join("-") };

// One call, with all that a person wants to see of its answer. `told` is called with what happens while it runs.
export async function call(id, input, { signal, headers, told } = {}) {
  const began = performance.now();
  const answer = await ask(path(id), { method: "POST", body: write(input), signal, headers: { ...HEADERS, ...(told && LIVE), ...headers } });
  const isLive = answer.headers.get("content-type")?.startsWith("text/event-stream");
  const outcome = { ...(isLive ? await lastOf(answer, told) : { status: answer.status, headers: [...answer.headers], text: await answer.text() }), ms: performance.now() - began };
  const { status, text } = outcome;
  if (status >= 400) throw Object.assign(await failureOf({ status, headers: new Headers(outcome.headers) }, text), { outcome });
  try {
    return Object.assign(outcome, { envelope: parse(text) });
  } catch {
    throw Object.assign(new CallFailure("UNKNOWN_ERROR", "The response is not JSON"), { outcome });
  }
}

// The response at the end of a followed call. Its body comes last in the event, and is taken as it was written.
async function lastOf(answer, told) {
  for await (const { event, data } of events(answer)) {
    if (event !== "response") { told(event, parse(data)); continue; }
    const at = data.indexOf(',"body":'), head = JSON.parse(`${data.slice(0, at)}}`);
    return { status: head.status, headers: [...[...answer.headers].filter(([name]) => name !== "content-type"), ...Object.entries(head.headers)].sort(), text: data.slice(at + 8, -1) };
  }
  throw new CallFailure("DATA_LOSS", "The connection was closed before the response arrived");
}

export async function answerQuestion(callId, answers) {
  const answer = await ask(`calls/${encodeURIComponent(callId)}/input`, { method: "POST", body: write({ inputResponses: answers }), headers: { "content-type": "application/json" } });
  if (!answer.ok) throw await failureOf(answer);
}

export async function value(id, input = {}) {
  return (await call(id, input)).envelope.data;
}

// A stream by fetch(), which sends the token; `gate` can pause it, `opened` is called when it has started.
export async function stream(id, input, { signal, item, gate, from, opened }) {
  const headers = { ...HEADERS, accept: "text/event-stream", ...(from ? { "last-event-id": from } : {}) };
  const answer = await ask(path(id), { method: "POST", body: write(input), signal, headers });
  if (!answer.ok) throw await failureOf(answer);
  opened?.();
  let lastId = from;
  for await (const fields of events(answer)) {
    if (fields.id) lastId = fields.id;
    if (fields.event === "complete") return;
    if (fields.data === undefined) continue;
    const wire = parse(fields.data);
    if (fields.event === "error") {
      const error = wire.error || wire;
      throw new CallFailure(error.code || "EXECUTION_ERROR", error.message || String(error), error.details);
    }
    await gate?.();
    signal.throwIfAborted(); // stopped while it was held back
    item(wire, lastId);
  }
  throw new CallFailure("DATA_LOSS", "The stream was cut before its end");
}

// The events of a stream as they come, each with the fields `data`, `event` and `id` that it has.
async function* events(answer) {
  for await (const block of blocks(answer.body.pipeThrough(new TextDecoderStream()).getReader())) {
    const fields = {};
    for (const line of block.split("\n")) {
      const [, name] = /^(data|event|id):/.exec(line) || [], text = name && line.slice(name.length + (line[name.length + 1] === " " ? 2 : 1));
      if (name) fields[name] = name === "data" && "data" in fields ? `${fields.data}\n${text}` : text;
    }
    yield fields;
  }
}

// Only what has come since the last look is searched for the end of an event.
async function* blocks(reader) {
  for (let rest = "", looked = 0; ;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new CallFailure("UNAVAILABLE", "The connection to the server was lost");
    });
    if (done) return;
    rest += value;
    let begin = 0;
    for (let end; (end = rest.indexOf("\n\n", Math.max(begin, looked - 1))) >= 0; begin = end + 2) yield rest.slice(begin, end);
    rest = rest.slice(begin);
    looked = rest.length;
  }
}

// Follow a subscription of the server's own for as long as a page is open; it is taken up again when it breaks. `state`
// is called with null when it has started, otherwise with the reason.
export function follow(id, input, item, state) {
  const ending = new AbortController();
  (async () => {
    for (let wait = 500; !ending.signal.aborted; wait = Math.min(wait * 2, 8000)) {
      try {
        await stream(id, input, { signal: ending.signal, item: (wire) => item(wire.data), opened() { wait = 500; state(null); } });
      } catch (error) {
        if (ending.signal.aborted) return;
        state(error);
        if (["OPERATION_NOT_FOUND", "ACCESS_DENIED"].includes(error.code)) return;
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  })();
  return () => ending.abort();
}
