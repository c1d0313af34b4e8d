// The caller's tasks: how far they are, the answers they still want, and a way to end them.

import { documentOf, value } from "./api.js";
import { count, empty, failed, h, show } from "./dom.js";
import { schemaForm } from "./form.js";

const EVERY = 2000;

export async function tasksPage(place, rest, state) {
  const told = h("p", { class: "dim small", role: "status" });
  const list = h("div", { class: "cards" });
  const names = {};
  for (const verb of ["cancel", "answer"]) if (state.own.has(`enfold.tasks.${verb}`)) names[verb] = await argumentsOf(`enfold.tasks.${verb}`);
  show(place, h("div", { class: "heading" }, h("h1", {}, "Tasks"), told), list);
  let timer = null, isOpen = true;
  const cards = new Map();

  async function load() {
    try {
      const found = await value("enfold.tasks.list");
      const tasks = Array.isArray(found) ? found : found.tasks || [];
      told.textContent = count(tasks.length, "task");
      for (const id of cards.keys()) if (!tasks.some((each) => idOf(each) === id)) cards.delete(id);
      const made = tasks.map((each) => {
        const text = JSON.stringify(each), old = cards.get(idOf(each));
        if (old?.text === text) return old.element;
        const element = card(each, names, act);
        cards.set(idOf(each), { text, element });
        return element;
      });
      if (!made.length) show(list, empty("There are no tasks", "A call that may take long becomes one: enfold call … --detach, or Prefer: respond-async."));
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

const idOf = (task) => task.taskId || task.task_id || task.id;

async function argumentsOf(id) {
  const document = await documentOf({ operation: id });
  let schema = document.paths[`/functions/${id}`].post.requestBody.content["application/json"].schema;
  if (schema.$ref) schema = document.components.schemas[schema.$ref.split("/").at(-1)];
  return Object.keys(schema.properties || {});
}

function card(task, names, act) {
  const id = idOf(task), status = task.status;
  const isOver = ["completed", "failed", "cancelled"].includes(status);
  const progress = task.progress && typeof task.progress === "object" ? task.progress : null;
  const questions = Object.entries(task.inputRequests || task.questions || {});
  return h("article", { class: `card ${status}`, "aria-label": `Task ${id}` },
    h("div", { class: "bar" }, h("h2", { class: "id" }, task.operation || id), h("span", { class: `state ${status === "completed" ? "up" : isOver ? "down" : "starting"}` }, status.replace("_", " "))),
    h("p", { class: "dim small id" }, id),
    (task.statusMessage || task.message || progress?.message) && h("p", { dir: "auto" }, task.statusMessage || task.message || progress.message),
    !isOver && h("progress", { max: progress?.total || 1, value: progress?.total ? progress.progress : undefined, "aria-label": "Progress" }),
    questions.map(([key, asked]) => question(key, asked, names.answer, id, act)),
    !isOver && names.cancel && h("button", { type: "button", onclick: (event) => act("enfold.tasks.cancel", { [names.cancel[0]]: id }, event.target) }, "Cancel"));
}

function question(key, asked, names, id, act) {
  const wanted = asked.params || asked;
  const form = schemaForm(wanted.requestedSchema || wanted.schema || { type: "object" }, () => ({}));
  const send = (action) => (event) => act("enfold.tasks.answer", { [names[0]]: id, [names[1]]: { [key]: action === "accept" ? { action, content: form.value() } : { action } } }, event.target);
  return h("section", { class: "question", "aria-label": "An answer is wanted" }, h("p", { dir: "auto" }, wanted.message || "An answer is wanted."), form.element,
    names && h("div", { class: "row" }, h("button", { type: "button", class: "primary", onclick: send("accept") }, "Answer"), h("button", { type: "button", onclick: send("decline") }, "Decline")));
}
