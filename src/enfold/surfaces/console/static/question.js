// A question of a handler, or of the MCP server behind it, as a form that is answered in place.

import { button, h, note } from "./dom.js";
import { schemaForm } from "./form.js";

// `asked` is the request as MCP has it; `answer` gets the answer and the button that was pressed.
export function question(asked, answer) {
  const wanted = asked.params || asked;
  const title = h("h2", String(wanted.message || "Answer required."));
  const card = (body, accept, words) => h("section.card.asked", { "aria-label": "Answer required" }, title, body,
    h("div.row", button(words, accept, "primary"), button("Decline", ({ target }) => answer({ action: "decline" }, target))));
  if (wanted.mode === "url" || wanted.url) return card(place(String(wanted.url)), ({ target }) => answer({ action: "accept" }, target), "I have done this");
  const form = schemaForm(wanted.requestedSchema || wanted.schema || { type: "object" }, () => ({}));
  return card(form.element, ({ target }) => {
    try {
      const content = form.value();
      form.tell([]);
      form.check();
      answer({ action: "accept", content }, target);
    } catch (error) {
      form.tell(error.faults || [{ message: error.message }]);
    }
  }, "Answer");
}

// An address that a server wants to have opened is shown in full, and is a link only if it leads to the web.
function place(url) {
  const isWeb = /^https?:\/\//i.test(url);
  return [h("p", isWeb ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, url) : h("code", url)), note("This address was sent by the server that asks. Open it only if you trust it.")];
}
