// A call while it runs: how long it takes, how far it is, what it says, what it asks, and a way to cancel it.

import { answerQuestion } from "./api.js";
import { button, chip, failed, h, show, took } from "./dom.js";
import { question } from "./question.js";
import { briefly } from "./result.js";

const MOST = 500;
const LEVELS = { warning: "warn", error: "bad", critical: "bad", alert: "bad", emergency: "bad" };

// `told` takes the events of the call; `stop` ends the clock. What was said stays with the answer as `log`.
export function running(cancel) {
  const began = performance.now(), elapsed = chip("0.0 s"), words = h("span", { role: "status" }, "Running…"), bar = h("progress", { hidden: true, "aria-label": "Progress" });
  const list = h("ol.loglines", { "aria-label": "Log messages" }), log = h("details", { open: true, hidden: true }, h("summary", "Log messages"), list);
  const asked = h("div", { "aria-live": "assertive" }), trouble = h("div"), open = new Map();
  let callId = null, number = 0;
  const tick = () => (elapsed.textContent = took(performance.now() - began));
  const clock = setInterval(tick, 100);
  const events = {
    started: ({ call }) => { callId = call; },
    progress({ progress, total, message }) {
      bar.hidden = false;
      if (total > 0) { bar.max = total; bar.value = progress; }
      words.textContent = [total > 0 ? `${progress} of ${total}` : String(progress), message].filter(Boolean).join(": ");
    },
    log({ level, message, data }) {
      log.hidden = false;
      list.append(h("li", h("span.dim.small", `${took(performance.now() - began)} `), h("span", { class: `small ${LEVELS[level] || "dim"}` }, level), " ", message, data != null && [" ", briefly(data, {})]));
      if (++number > MOST) list.firstChild.remove();
    },
    question(each) {
      const form = question(each, async (answer, pressed) => {
        pressed.disabled = true;
        show(trouble);
        try {
          await answerQuestion(callId, { [each.key]: answer });
        } catch (error) {
          show(trouble, failed(error));
          pressed.disabled = false;
        }
      });
      open.set(each.key, form);
      asked.append(form);
      words.textContent = "Waiting for your answer";
      form.querySelector("input, select, textarea, button")?.focus();
    },
    answered({ key }) { open.get(key)?.remove(); open.delete(key); if (!open.size) words.textContent = "Running…"; },
  };
  return { element: h("section.running.card", { "aria-label": "Running call" }, h("div.bar", h("p.summary", elapsed, words), button("Cancel", cancel, "danger")), bar, trouble, asked, log), log, told: (name, data) => events[name]?.(data), stop: () => clearInterval(clock) };
}
