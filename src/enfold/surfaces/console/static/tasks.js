// The caller's tasks: how far they are, the answers they still want, and a way to end them.

import { value } from "./api.js";
import { button, chip, count, empty, failed, filters, h, heading, note, searchbox, show, status, to, when } from "./dom.js";
import { schemaForm } from "./form.js";
import { write } from "./json.js";
import { dataView } from "./result.js";

const EVERY = 2000;
const KINDS = { completed: "good", failed: "bad", cancelled: "bad" };

export async function tasksPage(place, [only], state) {
  const told = status();
  const list = h("div.cards");
  const search = searchbox("Open a task by its id", "", only, () => { location.hash = `#/tasks/${encodeURIComponent(search.value.trim())}`; }, true);
  show(place, heading("Tasks", told), filters(search), list);
  let timer = null, isOpen = true;
  const cards = new Map();

  async function load() {
    try {
      const tasks = only ? [await value("enfold.tasks.get", { task_id: only })] : await value("enfold.tasks.list");
      told.textContent = count(tasks.length, "task");
      const made = tasks.map((each) => {
        const text = write(each), old = cards.get(each.task_id);
        if (old?.text === text) return old.element;
        const element = card(each, act);
        cards.set(each.task_id, { text, element });
        return element;
      });
      if (!made.length) show(list, empty("No tasks", state.about?.caller ? "Choose “Run as a task” for a durable operation to start one." : "Without authentication, tasks are not listed, because knowing the id of a task gives access to it. Open a task by its id."));
      else if (made.length !== list.children.length || made.some((each, at) => list.children[at] !== each)) show(list, made);
    } catch (error) {
      show(list, failed(error, load));
    }
    if (isOpen) timer = setTimeout(load, EVERY);
  }
  async function act(id, input, pressed) {
    pressed.disabled = true;
    try {
      await value(id, input);
    } catch (error) {
      pressed.after(failed(error));
      pressed.disabled = false;
      return;
    }
    clearTimeout(timer);
    await load();
  }
  await load();
  return { ended() { isOpen = false; clearTimeout(timer); } };
}

function card(task, act) {
  const id = task.task_id, isOver = task.status in KINDS;
  return h("article.card", { "aria-label": `Task ${id}` },
    h("div.bar", h("h2.id", task.operation), chip(task.status.replace("_", " "), KINDS[task.status] || "warn")),
    h("p.small.id", to("tasks", id)),
    note("since ", when(task.created)),
    task.message && h("p", task.message),
    task.status === "working" && h("progress", { max: task.total || 1, value: task.total ? task.progress : undefined, "aria-label": "Progress" }),
    task.result && dataView(task.result.data, task.result.meta).element,
    task.error && failed(task.error),
    Object.entries(task.questions).map(([key, asked]) => question(key, asked, id, act)),
    !isOver && h("div.row", h("button", { disabled: task.is_cancelling, onclick: (event) => act("enfold.tasks.cancel", { task_id: id }, event.target) }, task.is_cancelling ? "Cancelling…" : "Cancel")));
}

function question(key, asked, id, act) {
  const wanted = asked.params || asked;
  const form = schemaForm(wanted.requestedSchema || wanted.schema || { type: "object" }, () => ({}));
  const answer = (given, pressed) => act("enfold.tasks.answer", { task_id: id, answers: { [key]: given } }, pressed);
  function accept({ target }) {
    try {
      const content = form.value();
      form.tell([]);
      form.check();
      answer({ action: "accept", content }, target);
    } catch (error) {
      form.tell(error.faults);
    }
  }
  return h("section.question", { "aria-label": "Answer required" }, h("p", String(wanted.message || "Answer required.")), form.element,
    h("div.row", button("Answer", accept, "primary"), button("Decline", ({ target }) => answer({ action: "decline" }, target))));
}
