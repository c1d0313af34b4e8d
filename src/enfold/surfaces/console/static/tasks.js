// The caller's tasks: how far they are, the answers they still want, and a way to end them.

import { value } from "./api.js";
import { count, empty, failed, h, show, when } from "./dom.js";
import { schemaForm } from "./form.js";

const EVERY = 2000;

export async function tasksPage(place, [only], state) {
  const told = h("p", { class: "dim small", role: "status" });
  const list = h("div", { class: "cards" });
  const search = h("input", { type: "search", placeholder: "Open a task by its id", "aria-label": "Open a task by its id", value: only || "", onchange() { location.hash = search.value.trim() ? `#/tasks/${encodeURIComponent(search.value.trim())}` : "#/tasks"; } });
  show(place, h("div", { class: "heading" }, h("h1", {}, "Tasks"), told), h("div", { class: "filters", role: "search" }, search), list);
  let timer = null, isOpen = true;
  const cards = new Map();

  async function load() {
    try {
      const tasks = only ? [await value("enfold.tasks.get", { task_id: only })] : await value("enfold.tasks.list");
      told.textContent = count(tasks.length, "task");
      for (const id of cards.keys()) if (!tasks.some((each) => idOf(each) === id)) cards.delete(id);
      const made = tasks.map((each) => {
        const text = JSON.stringify(each), old = cards.get(idOf(each));
        if (old?.text === text) return old.element;
        const element = card(each, act);
        cards.set(idOf(each), { text, element });
        return element;
      });
      if (!made.length) show(list, empty("There are no tasks", state.about?.caller ? "A call that may take long becomes one: enfold call … --detach, or Prefer: respond-async." : "Where nobody has an identity, the id of a task is a secret and none is listed. Whoever has one opens it by its id."));
      else if (made.length !== list.children.length || made.some((each, at) => list.children[at] !== each)) show(list, made);
    } catch (error) {
      show(list, failed(error, load));
    }
    if (isOpen) timer = setTimeout(load, EVERY);
  }
  async function act(id, input, button) {
    button.disabled = true;
    try {
      await value(id, input);
    } catch (error) {
      button.after(failed(error));
    }
    clearTimeout(timer);
    await load();
  }
  await load();
  return () => { isOpen = false; clearTimeout(timer); };
}

const idOf = (task) => task.task_id;

function card(task, act) {
  const id = idOf(task), status = task.status;
  const isOver = ["completed", "failed", "cancelled"].includes(status);
  return h("article", { class: `card ${status}`, "aria-label": `Task ${id}` },
    h("div", { class: "bar" }, h("h2", { class: "id" }, task.operation), h("span", { class: `state ${status === "completed" ? "up" : isOver ? "down" : "starting"}` }, status.replace("_", " "))),
    h("p", { class: "dim small id" }, id),
    h("p", { class: "dim small" }, "since ", when(task.created)),
    task.message && h("p", { dir: "auto" }, task.message),
    status === "working" && h("progress", { max: task.total || 1, value: task.total ? task.progress : undefined, "aria-label": "Progress" }),
    Object.entries(task.questions).map(([key, asked]) => question(key, asked, id, act)),
    !isOver && h("button", { type: "button", disabled: task.is_cancelling, onclick: (event) => act("enfold.tasks.cancel", { task_id: id }, event.target) }, task.is_cancelling ? "Cancelling…" : "Cancel"));
}

function question(key, asked, id, act) {
  const wanted = asked.params || asked;
  const form = schemaForm(wanted.requestedSchema || wanted.schema || { type: "object" }, () => ({}));
  const send = (action) => (event) => act("enfold.tasks.answer", { task_id: id, answers: { [key]: action === "accept" ? { action, content: form.value() } : { action } } }, event.target);
  return h("section", { class: "question", "aria-label": "An answer is wanted" }, h("p", { dir: "auto" }, wanted.message || "An answer is wanted."), form.element,
    h("div", { class: "row" }, h("button", { type: "button", class: "primary", onclick: send("accept") }, "Answer"), h("button", { type: "button", onclick: send("decline") }, "Decline")));
}
