// The server as an agent sees it: search instead of a list, one operation described, and a result narrowed to some fields.

import { value } from "./api.js";
import { address, bring, chip, copied, count, empty, failed, h, heading, long, note, searchbox, show, status, to } from "./dom.js";
import { write } from "./json.js";

export async function agentsPage(place, [chosen], { query }) {
  const told = status(), list = h("ul.rows.found-list", { "aria-label": "What the agent finds" }), beside = h("div.beside", { "aria-live": "polite" });
  const search = searchbox("Search as an agent", "Describe a task, for example: order something", query.get("q"), later);
  let timer = null, turn = 0;
  const remember = () => address(chosen ? `agents/${encodeURIComponent(chosen)}` : "agents", { q: search.value });
  function later() { clearTimeout(timer); timer = setTimeout(find, 120); }
  async function find() {
    const mine = ++turn;
    remember();
    try {
      const answer = await value("enfold.operations.search", { query: search.value });
      if (mine !== turn) return;
      const saved = Math.max(0, Math.round((1 - answer.tokens / Math.max(answer.list_tokens, 1)) * 100));
      show(told, chip(`≈ ${count(answer.tokens, "token")}`, "good"), ` for this answer of search_operations, instead of ≈ ${long(answer.list_tokens)} for the list of ${count(answer.tools, "tool")}${saved ? ` (${saved} % less)` : ""}.`);
      show(list, answer.found.map((each) => h("li", { class: each.id === chosen ? "chosen" : null }, h("a", { href: `#/agents/${encodeURIComponent(each.id)}`, onclick(event) { event.preventDefault(); open(each.id); } }, h("span.id", each.id), h("code.signature", each.signature), h("span.words", each.description)))));
      if (!answer.found.length) show(list, h("li.none", "No operations found. Describe the task in other words."));
    } catch (error) {
      if (mine === turn) show(list, h("li", failed(error, find)));
    }
  }
  async function open(id) {
    chosen = id;
    remember();
    for (const each of list.children) each.classList.toggle("chosen", each.textContent.startsWith(id));
    try {
      const { description, tokens } = await value("enfold.operations.describe", { id });
      if (chosen !== id) return;
      show(beside, described(id, description, tokens));
      bring(beside);
    } catch (error) {
      show(beside, failed(error));
    }
  }
  show(place, heading("Agents"), h("p.description", "Try the three tools that agents get instead of a long list: search_operations, describe_operation, and call_operation with select. Costs are estimates, one token for four bytes."), h("div.filters", { role: "search" }, search), told, h("div.split.even", h("section", h("h2", "search_operations"), list), beside));
  show(beside, empty("Choose an operation", "Its description, as the agent reads it, appears here."));
  await find();
  if (chosen) await open(chosen);
  return { ended: () => clearTimeout(timer) };
}

function described(id, description, tokens) {
  const fault = h("p.fault", { role: "alert", hidden: true, id: "select-fault" }), narrowed = h("div", { "aria-live": "polite" });
  const field = h("input.code", { id: "select", autocomplete: "off", placeholder: "items(id,user/login),total", "aria-describedby": "select-fault", oninput: later });
  let timer = null, turn = 0;
  function later() { clearTimeout(timer); timer = setTimeout(narrow, 200); }
  async function narrow() {
    const mine = ++turn, select = field.value.trim();
    fault.hidden = true;
    field.removeAttribute("aria-invalid");
    if (!select) { show(narrowed); return; }
    try {
      const answer = await value("enfold.operations.select", { id, select });
      if (mine !== turn) return;
      const saved = answer.whole_tokens - answer.tokens;
      show(narrowed, h("p.summary", chip(`≈ ${long(answer.tokens)} tokens`, "good"), saved > 0 ? `of ≈ ${long(answer.whole_tokens)}: ${long(saved)} saved in the schema` : `of ≈ ${long(answer.whole_tokens)}: this saves nothing in the schema`), h("h3", "Narrowed result"), copied(answer.outline), h("h3", "Narrowed schema"), copied(write(answer.schema, 2)));
    } catch (error) {
      if (mine !== turn) return;
      fault.textContent = error.message;
      fault.hidden = false;
      field.setAttribute("aria-invalid", "true");
      show(narrowed);
    }
  }
  return h("section", h("h2", "describe_operation"), h("p.summary", to("operations", id, id, "id"), chip(`≈ ${long(tokens)} tokens`, "good")), copied(write(description, 2)),
    h("h2", "select"), h("label", { for: "select" }, "Fields of the result"), field, fault, note(description.result ? `The result: ${description.result}` : "The result has no fields."), narrowed);
}
