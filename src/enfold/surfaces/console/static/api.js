// Everything the console asks of its server: the document, and operations by the same address as any other client.

import { h } from "./dom.js";

export const base = new URL(".", location.href.split("#")[0]);
const KEY = "enfold-token";

export class CallFailure extends Error {
  constructor(code, message, details, answer) {
    super(message);
    Object.assign(this, { code, details: details || {}, answer });
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
    const field = h("input", { type: "text", class: "secret", id: "token", autocomplete: "off", spellcheck: "false", value: token.get() });
    const dialog = h("dialog", { "aria-labelledby": "token-title", onclose() {
      asking = null;
      dialog.remove();
      resolve(dialog.returnValue === "use");
    } });
    const use = () => { token.set(field.value.trim()); dialog.close("use"); };
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") use(); });
    dialog.append(
      h("h2", { id: "token-title" }, "Who is calling?"),
      h("p", { class: "dim" }, why || "Give the bearer token of the calls that you make here."),
      h("label", { for: "token" }, "Token"), field,
      h("p", { class: "dim small" }, "It stays in this tab, and is sent to this server alone."),
      h("div", { class: "row" },
        h("button", { type: "button", class: "primary", onclick: use }, "Use it"),
        h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
        token.get() && h("button", { type: "button", class: "quiet", onclick() { token.set(""); dialog.close("use"); } }, "Forget it")));
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
  return asking;
}

async function ask(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    const used = token.get();
    if (used) headers.authorization = `Bearer ${used}`;
    let answer;
    try {
      answer = await fetch(new URL(path, base), { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new CallFailure("UNAVAILABLE", "The server does not answer. Is it running?");
    }
    if (answer.status !== 401) return answer;
    if (token.get() !== used) continue;
    const why = used ? "This token is not valid here." : "This server needs a bearer token.";
    if (!(await askForToken(why))) throw await failureOf(answer);
    dispatchEvent(new Event("caller"));
  }
}

async function failureOf(answer, text) {
  const body = text ?? (await answer.text());
  try {
    const error = JSON.parse(body).error;
    if (typeof error === "string") return new CallFailure(answer.headers.get("enfold-code") || `HTTP ${answer.status}`, error);
    return new CallFailure(error.code, error.message, error.details, answer);
  } catch {
    return new CallFailure(`HTTP ${answer.status}`, body.slice(0, 300) || answer.statusText);
  }
}

export async function documentOf(query) {
  const answer = await ask(`openapi.json?${new URLSearchParams(query)}`);
  if (!answer.ok) throw await failureOf(answer);
  return answer.json();
}

const path = (id) => `functions/${encodeURIComponent(id)}`;
const HEADERS = { "content-type": "application/json", "enfold-format": "annotated" };

// One call, with all that a person wants to see of its answer.
export async function call(id, input, { signal, headers } = {}) {
  const began = performance.now();
  const answer = await ask(path(id), { method: "POST", body: JSON.stringify(input), signal, headers: { ...HEADERS, ...headers } });
  const text = await answer.text();
  const outcome = { status: answer.status, headers: [...answer.headers], text, ms: performance.now() - began };
  if (!answer.ok) throw Object.assign(await failureOf(answer, text), { outcome });
  try {
    return Object.assign(outcome, { envelope: JSON.parse(text) });
  } catch {
    throw Object.assign(new CallFailure("UNKNOWN_ERROR", "The answer is not JSON"), { outcome });
  }
}

export async function value(id, input = {}) {
  return (await call(id, input)).envelope.data;
}

// A stream by fetch(), which sends the token; `gate` may hold it back. It gives the id of the last event.
export async function stream(id, input, { signal, item, gate, from }) {
  const headers = { ...HEADERS, accept: "text/event-stream", ...(from ? { "last-event-id": from } : {}) };
  const answer = await ask(path(id), { method: "POST", body: JSON.stringify(input), signal, headers });
  if (!answer.ok) throw await failureOf(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", lastId = from;
  for (;;) {
    await gate?.();
    const { value: piece, done } = await reader.read();
    if (done) throw new CallFailure("DATA_LOSS", "The stream was cut before its end");
    const blocks = (rest + piece).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split(/\r?\n/)) {
        const at = line.indexOf(":");
        if (at > 0) {
          const name = line.slice(0, at), text = line.slice(at + 1).replace(/^ /, "");
          fields[name] = name in fields && name === "data" ? `${fields[name]}\n${text}` : text;
        }
      }
      if (fields.data === undefined) continue;
      if (fields.id) lastId = fields.id;
      if (fields.event === "complete") return lastId;
      const wire = JSON.parse(fields.data);
      if (fields.event === "error") {
        const error = wire.error || wire;
        throw new CallFailure(error.code || "EXECUTION_ERROR", error.message || String(error), error.details);
      }
      await gate?.();
      item(wire, lastId);
    }
  }
}

// Follow a subscription of the server's own for as long as a page is open; it is taken up again when it breaks.
export function follow(id, input, item, state) {
  const ending = new AbortController();
  (async () => {
    for (let wait = 500; !ending.signal.aborted; wait = Math.min(wait * 2, 8000)) {
      try {
        await stream(id, input, { signal: ending.signal, item(wire) { wait = 500; state?.(null); item(wire.data); } });
      } catch (error) {
        if (ending.signal.aborted) return;
        state?.(error);
        if (["OPERATION_NOT_FOUND", "ACCESS_DENIED"].includes(error.code)) return;
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  })();
  return () => ending.abort();
}
