// The caller's tasks: a list with filters, and one task across the whole page, live: its input, attempts, questions and outcome.

import { follow, value } from "./api.js";
import { address, button, capital, chip, count, empty, failed, filters, h, heading, moment, note, pairs, searchbox, select, shortened, show, status, table, TIMES, to, took, when } from "./dom.js";
import { write } from "./json.js";
import { question } from "./question.js";
import { dataView, tree } from "./result.js";

const EVERY = 1000, PAGE = 50, MOST = 1000;
const STATES = { working: ["working", "warn"], input_required: ["waiting for an answer", "warn"], completed: ["completed", "good"], failed: ["failed", "bad"], cancelled: ["cancelled", ""] };
const ENDS = { asked: "it asked a question", worker_died: "its worker died", worker_stopped: "its worker stopped" };
const COLUMNS = [["State"], ["Operation"], ["Task"], ["Progress"], ["Caller"], ["Started"], ["Attempts", true]];
const isOver = (task) => ["completed", "failed", "cancelled"].includes(task.status);
const stateChip = (task) => chip(...(STATES[task.status] || [task.status, ""]));

export async function tasksPage(place, [only], state) {
  return only ? onePage(place, only, state) : listPage(place, state);
}

async function listPage(place, { query, about }) {
  const told = status(), list = h("div"), body = h("tbody"), rows = new Map();
  const state = select("Filter by state", [["", "In any state"], ...Object.entries(STATES).map(([name, [words]]) => [name, words])], query.get("status"), again);
  const operation = searchbox("Filter by operation", "Operation", query.get("operation"), again), caller = searchbox("Filter by caller", "Caller", query.get("caller"), again, true);
  const since = select("Filter by time", TIMES, query.get("since"), again);
  const byId = searchbox("Open a task by its id", "Open a task by its id", "", () => { location.hash = `#/tasks/${encodeURIComponent(byId.value.trim())}`; }, true);
  const more = button("Show more", () => { limit += PAGE; again(); }, "more");
  let timer = null, isOpen = true, limit = PAGE, turn = 0;

  async function load() {
    const mine = ++turn, asked = { limit };
    const chosen = { status: state.value, operation: operation.value.trim(), caller: caller.value.trim(), since: since.value && Date.now() - Number(since.value) };
    for (const [name, wanted] of Object.entries(chosen)) if (wanted) asked[name] = wanted;
    try {
      const tasks = await value("enfold.tasks.list", asked);
      if (mine !== turn || !isOpen) return;
      told.textContent = `${count(tasks.length, "task")}${tasks.length === limit ? ", the newest" : ""}`;
      more.hidden = tasks.length < limit || limit >= MOST;
      const made = tasks.map((each) => {
        const text = write(each), old = rows.get(each.task_id);
        if (old?.text === text) return old.element;
        const element = row(each);
        rows.set(each.task_id, { text, element });
        return element;
      });
      if (made.length !== body.children.length || made.some((each, at) => body.children[at] !== each)) show(body, made);
      if (!made.length) show(list, Object.keys(asked).length > 1 ? empty("No matching tasks", "Try another state, fewer words, or a longer period.") : empty("No tasks", about?.caller ? "Choose “Run as a task” for a durable operation to start one." : "Without authentication, tasks are not listed, because knowing the id of a task gives access to it. Open a task by its id."));
      else if (!body.isConnected || list.firstChild?.className === "empty") show(list, table("Tasks", COLUMNS, body, "log"), more);
    } catch (error) {
      if (mine === turn) show(list, failed(error, load));
    }
    if (isOpen && mine === turn) timer = setTimeout(load, EVERY);
  }
  function again() {
    address("tasks", { status: state.value, operation: operation.value, caller: caller.value, since: since.value });
    clearTimeout(timer);
    return load();
  }
  show(place, heading("Tasks", told), filters(state, operation, caller, since, byId), list);
  await load();
  return { ended() { isOpen = false; clearTimeout(timer); } };
}

const row = (task) => h("tr", h("td", stateChip(task)), h("td", to("tasks", task.task_id, task.operation, "id")), h("td.id", task.task_id.slice(0, 10)),
  h("td", task.status === "working" && task.total ? bar(task) : null, isWaiting(task) ? shortened(questionOf(task), 60) : isOver(task) ? "" : task.message || ""), h("td", task.caller || "anonymous"), h("td", when(task.created)), h("td.end", task.attempts.length));

const isWaiting = (task) => task.status === "input_required";
const questionOf = (task) => String(Object.values(task.questions)[0]?.params.message ?? "");
const bar = (task) => h("progress", { max: task.total || 1, value: task.total ? task.progress : undefined, "aria-label": "Progress" });

async function onePage(place, id, state) {
  let task = await value("enfold.tasks.get", { task_id: id }), stop = () => {};
  const asked = new Map(), trouble = h("div"), top = h("div"), questions = h("div"), rest = h("div");
  show(place, h("p.crumbs", h("a", { href: "#/tasks" }, "Tasks")), top, trouble, questions, rest);

  async function act(verb, input, pressed) {
    pressed.disabled = true;
    show(trouble);
    try {
      const after = await value(`enfold.tasks.${verb}`, { task_id: id, ...input });
      if (verb === "retry") location.hash = `#/tasks/${encodeURIComponent(after.task_id)}`;
    } catch (error) {
      show(trouble, failed(error));
      pressed.disabled = false;
    }
  }
  function draw() {
    const canRetry = isOver(task) && state.own.has("enfold.tasks.retry") && (task.caller || "") === (state.about?.caller?.id || "");
    // Below the facts and away from questions, so that answering one cannot cancel the task by mistake.
    const actions = [!isOver(task) && h("button.danger", { disabled: task.is_cancelling, onclick: ({ target }) => act("cancel", {}, target) }, task.is_cancelling ? "Cancelling…" : "Cancel the task"),
      canRetry && button("Run again", ({ target }) => act("retry", {}, target))];
    show(top, h("div.heading", h("h1.id", task.operation), stateChip(task)),
    task.status === "working" && bar(task), !isOver(task) && task.message && h("p", { role: "status" }, task.message));
    for (const key of asked.keys()) if (!(key in task.questions)) asked.delete(key);
    for (const [key, each] of Object.entries(task.questions)) if (!asked.has(key)) asked.set(key, question(each, (answer, pressed) => act("answer", { answers: { [key]: answer } }, pressed)));
    if ([...asked.values()].some((each, at) => questions.children[at] !== each) || questions.children.length !== asked.size) show(questions, [...asked.values()]);
    show(rest, h("div.sides",
      h("section", h("h2", "Task"), pairs([["Task id", id], ["Caller", task.caller || "anonymous"], ["Started", moment(task.created)], ["Changed", moment(task.updated)],
        [isOver(task) ? "Took" : "Runs for", took(Math.max((isOver(task) ? task.updated : Date.now()) - task.created, 0))], ["Deadline", task.deadline ? moment(task.deadline) : ""], ["Kept until", moment(task.created + task.ttl_ms)]], "facts"), h("p", actions)),
      h("section", h("h2", "Input"), task.input == null ? note("Not shown: the operation no longer exists.") : tree(task.input).element)),
    isOver(task) && h("section", h("h2", task.error ? "Error" : "Result"), task.error ? [failed(task.error), Object.keys(task.error.details || {}).length > 0 && tree(task.error.details).element] : dataView(task.result.data, task.result.meta).element),
    h("section", h("h2", "Timeline"), timeline(task)));
  }
  draw();
  if (!isOver(task)) stop = follow("enfold.tasks.watch", { task_id: id }, (next) => { task = next; draw(); if (isOver(task)) stop(); }, (error) => {
    show(trouble, error && failed(error));
    if (error?.code === "TASK_NOT_FOUND") stop();
  });
  return { ended: () => stop() };
}

// What happened, the oldest first: attempts, each with its worker, and questions with their answers.
function timeline(task) {
  const first = task.attempts.length < 20 ? 1 : "…";
  const events = [[task.created, "started", `By ${task.caller || "anonymous"}`, ""],
    ...task.attempts.map((each, at) => [each.began, `attempt ${first === 1 ? at + 1 : `−${task.attempts.length - at - 1}`}`, [`Worker: ${each.worker}`, h("br"), each.ended == null ? "Running" : `Ended ${moment(each.ended)}, after ${took(each.ended - each.began)}: ${ENDS[each.reason] || each.reason}`],
      each.ended == null ? "warn" : { completed: "good", failed: "bad", worker_died: "bad" }[each.reason] || ""]),
    ...task.exchanges.flatMap((each) => [[each.asked, "question", each.message, "warn"], ...(each.answered == null ? [] : [[each.answered, "answer", h("code", each.answer), "good"]])]),
    ...(isOver(task) ? [[task.updated, STATES[task.status][0], task.error?.message || "", STATES[task.status][1]]] : [])];
  return h("ol.timeline", events.sort((one, other) => one[0] - other[0]).map(([time, title, words, kind]) => h("li", { class: kind }, h("strong", capital(title)), " ", h("span.small", moment(time)), h("p", words))));
}
