// A form made from a JSON Schema. What it cannot show as fields is JSON text; a fault is shown at the field it belongs to.

import { fresh, h, show } from "./dom.js";

const DEEPEST = 12;

// `resolve` finds what a $ref names. A form has `element`, `value()`, `set(value)` and `tell(faults)`.
export function schemaForm(schema, resolve) {
  const form = field(schema, resolve, { name: "", path: "", required: true, depth: 0 });
  return {
    element: form.element,
    value: form.value,
    set: form.set,
    tell(faults) {
      for (const old of form.element.querySelectorAll(".fault")) { old.textContent = ""; old.hidden = true; }
      for (const each of form.element.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
      const lost = faults.filter((fault) => !mark(form.element, fault));
      form.element.querySelector("[aria-invalid]")?.focus();
      return lost;
    },
  };
}

// The nearest field to what a fault names: of `lines[0].item` that, or `lines[0]`, or `lines`.
function mark(root, { argument, message }) {
  for (let path = argument; path; path = path.replace(/(\.[^.[\]]+|\[[^\]]*\]|^[^.[]+)$/, "")) {
    const place = [...root.querySelectorAll("[data-path]")].find((each) => each.dataset.path === path);
    if (!place) continue;
    const told = place.querySelector(":scope > .fault");
    told.textContent = told.textContent ? `${told.textContent} ${message}` : message;
    told.hidden = false;
    for (let open = place.closest("details"); open; open = open.parentElement.closest("details")) open.open = true;
    (place.querySelector("input, select, textarea") || place).setAttribute("aria-invalid", "true");
    return true;
  }
  return false;
}

function field(given, resolve, at) {
  const { schema, isNullable } = plainly(given, resolve);
  if (at.depth > DEEPEST) return json(schema, at);
  if (schema.const !== undefined) return choice([schema.const], schema, at);
  if (Array.isArray(schema.enum)) return choice(schema.enum.filter((each) => each !== null), schema, at);
  const several = schema.oneOf || schema.anyOf;
  if (several) return oneOf(several, schema, resolve, at);
  const type = Array.isArray(schema.type) ? (schema.type.filter((each) => each !== "null").length === 1 ? schema.type.find((each) => each !== "null") : null) : schema.type;
  if (type === "object" && schema.properties) return object(schema, resolve, at);
  if (type === "object" && at.depth === 0) return object({ ...schema, properties: {} }, resolve, at);
  if (type === "array" && !Array.isArray(schema.prefixItems)) return array(schema, resolve, at);
  if (type === "boolean") return choice([true, false], schema, at);
  if (type === "integer" || type === "number") return number(schema, type, at);
  if (type === "string") return text(schema, at);
  return json(schema, at, isNullable);
}

// References followed, and a choice between something and null taken as that something.
function plainly(given, resolve) {
  let schema = given === true || typeof given !== "object" || given === null ? {} : given, isNullable = false;
  for (let step = 0; step < 20; step++) {
    if (schema.$ref) { const { $ref, ...beside } = schema; schema = { ...resolve($ref), ...beside }; continue; }
    const several = schema.anyOf || schema.oneOf;
    const real = several?.filter((each) => each?.type !== "null");
    if (several && real.length < several.length && real.length === 1) { const { anyOf, oneOf: _, ...beside } = schema; isNullable = true; schema = { ...real[0], ...beside }; continue; }
    if (schema.allOf?.length === 1) { const { allOf, ...beside } = schema; schema = { ...allOf[0], ...beside }; continue; }
    break;
  }
  return { schema, isNullable };
}

const label = (schema, at) => schema.title && !at.name ? schema.title : at.name;

function labelled(control, schema, at, value, set, extra) {
  const told = fresh("told"), note = limits(schema), words = schema.description;
  control.id ||= fresh("field");
  control.setAttribute("aria-describedby", told);
  if (at.required) control.setAttribute("aria-required", "true");
  const element = h("div", { class: "field", "data-path": at.path },
    h("label", { for: control.id }, h("span", { dir: "auto" }, label(schema, at)), " ", at.required ? h("span", { class: "needed" }, "required") : h("span", { class: "dim" }, "optional")),
    control, extra,
    h("p", { id: told, class: "hint", dir: "auto", hidden: !(words || note) }, [words, note].filter(Boolean).join(" · ")),
    h("p", { class: "fault", role: "alert", hidden: true }));
  return { element, value, set };
}

function limits(schema) {
  const parts = [];
  if (schema.minimum !== undefined) parts.push(`from ${schema.minimum}`);
  if (schema.exclusiveMinimum !== undefined) parts.push(`above ${schema.exclusiveMinimum}`);
  if (schema.maximum !== undefined) parts.push(`to ${schema.maximum}`);
  if (schema.exclusiveMaximum !== undefined) parts.push(`below ${schema.exclusiveMaximum}`);
  if (schema.minLength) parts.push(`at least ${schema.minLength} characters`);
  if (schema.maxLength !== undefined) parts.push(`at most ${schema.maxLength} characters`);
  if (schema.pattern) parts.push(`like ${schema.pattern}`);
  if (schema.default !== undefined && schema.default !== null) parts.push(`if left out ${JSON.stringify(schema.default)}`);
  return parts.join(", ");
}

function choice(options, schema, at) {
  const texts = options.map((each) => (typeof each === "string" ? each : JSON.stringify(each)));
  const control = h("select", {}, (!at.required || options.length > 1) && h("option", { value: "" }, at.required ? "Choose…" : "Not given"),
    texts.map((each, place) => h("option", { value: String(place) }, each)));
  return labelled(control, schema, at, () => (control.value === "" ? undefined : options[Number(control.value)]),
    (value) => { const place = options.findIndex((each) => each === value); control.value = place < 0 ? "" : String(place); });
}

function number(schema, type, at) {
  const control = h("input", { type: "number", inputmode: type === "integer" ? "numeric" : "decimal", step: schema.multipleOf || (type === "integer" ? 1 : "any"), min: schema.minimum, max: schema.maximum });
  return labelled(control, schema, at, () => (control.value === "" ? undefined : Number(control.value)), (value) => { control.value = value ?? ""; });
}

const KINDS = { date: "date", "date-time": "datetime-local", email: "email", uri: "url", url: "url", password: "password" };

function text(schema, at) {
  const kind = KINDS[schema.format];
  if (kind === "datetime-local") {
    const control = h("input", { type: kind, step: "1" });
    return labelled(control, { ...schema, description: [schema.description, "in your own time zone"].filter(Boolean).join(" · ") }, at,
      () => (control.value ? new Date(control.value).toISOString() : undefined),
      (value) => { const date = new Date(value); control.value = isNaN(date) ? "" : new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19); });
  }
  const isLong = !kind && ((schema.maxLength ?? 0) > 200 || /text|body|content|markdown|prompt|code|query/i.test(at.name));
  const control = isLong ? h("textarea", { rows: "3", dir: "auto" }) : h("input", { type: kind || "text", dir: "auto", spellcheck: "false", autocomplete: "off" });
  const file = schema.contentEncoding === "base64" && h("input", { type: "file", "aria-label": `File for ${at.name}`, async onchange(event) {
    const data = new Uint8Array(await event.target.files[0].arrayBuffer());
    let binary = "";
    for (let start = 0; start < data.length; start += 32768) binary += String.fromCharCode(...data.subarray(start, start + 32768));
    control.value = btoa(binary);
  } });
  // An empty text is left out, unless it must be there: then it is meant.
  return labelled(control, schema, at, () => (control.value === "" && !at.required ? undefined : control.value), (value) => { control.value = value ?? ""; }, file);
}

function json(schema, at) {
  const control = h("textarea", { rows: "3", class: "code", spellcheck: "false", placeholder: "JSON" });
  return labelled(control, schema, at, () => (control.value.trim() === "" ? undefined : read(control.value, at)),
    (value) => { control.value = value === undefined ? "" : JSON.stringify(value, null, 2); });
}

export class NotJSON extends Error {
  constructor(path, why) { super(`This is not JSON: ${why}`); this.faults = [{ argument: path, message: this.message }]; }
}

export function read(source, at) {
  try {
    return JSON.parse(source);
  } catch (error) {
    throw new NotJSON(at.path, error.message);
  }
}

function object(schema, resolve, at) {
  const required = new Set(schema.required || []);
  const names = Object.keys(schema.properties).sort((one, other) => required.has(other) - required.has(one));
  const make = () => names.map((name) => [name, field(schema.properties[name], resolve,
    { name, path: at.path ? `${at.path}.${name}` : name, required: required.has(name), depth: at.depth + 1 })]);
  if (at.depth === 0) {
    const parts = make();
    const element = h("div", { class: "fields" }, parts.length ? parts.map(([, part]) => part.element) : h("p", { class: "dim" }, "It takes no arguments."));
    return { element, ...gathered(() => parts) };
  }
  let parts = null;
  const body = h("div", { class: "fields" });
  const toggle = h("button", { type: "button", class: "quiet", onclick: () => (parts ? drop() : add()) }, "Add");
  function add() { parts = make(); show(body, parts.map(([, part]) => part.element)); toggle.textContent = "Remove"; }
  function drop() { parts = null; show(body); toggle.textContent = "Add"; }
  if (at.required) { add(); toggle.hidden = true; }
  const element = h("fieldset", { "data-path": at.path }, h("legend", {}, h("span", { dir: "auto" }, at.name || "item"), " ", at.required ? h("span", { class: "needed" }, "required") : h("span", { class: "dim" }, "optional")),
    h("p", { class: "hint", dir: "auto", hidden: !schema.description }, schema.description || ""), toggle, body, h("p", { class: "fault", role: "alert", hidden: true }));
  const inner = gathered(() => parts || []);
  return { element, value: () => (parts ? inner.value() : undefined), set(value) { if (value && typeof value === "object") { if (!parts) add(); inner.set(value); } else if (!at.required) drop(); } };
}

function gathered(parts) {
  return {
    value() {
      const found = {};
      for (const [name, part] of parts()) { const value = part.value(); if (value !== undefined) Object.defineProperty(found, name, { value, enumerable: true, configurable: true, writable: true }); }
      return found;
    },
    set(value) { for (const [name, part] of parts()) part.set(value?.[name]); },
  };
}

function array(schema, resolve, at) {
  const items = [];
  const body = h("ol", { class: "items" });
  function add(value) {
    const part = field(schema.items ?? {}, resolve, { name: `${at.name} ${items.length + 1}`, path: `${at.path}[${items.length}]`, required: true, depth: at.depth + 1 });
    const entry = { part, line: null };
    entry.line = h("li", {}, part.element, h("button", { type: "button", class: "quiet", "aria-label": `Remove ${at.name} ${items.length + 1}`, onclick() {
      const kept = items.filter((each) => each !== entry).map((each) => each.part.value());
      items.length = 0; show(body); kept.forEach(add);
    } }, "Remove"));
    items.push(entry);
    body.append(entry.line);
    if (value !== undefined) part.set(value);
  }
  const more = h("button", { type: "button", class: "quiet", onclick() { add(); items.at(-1).line.querySelector("input, select, textarea, button")?.focus(); } }, "Add an item");
  const element = h("fieldset", { "data-path": at.path }, h("legend", {}, h("span", { dir: "auto" }, at.name), " ", at.required ? h("span", { class: "needed" }, "required") : h("span", { class: "dim" }, "optional")),
    h("p", { class: "hint", dir: "auto", hidden: !schema.description }, schema.description || ""), body, more, h("p", { class: "fault", role: "alert", hidden: true }));
  return {
    element,
    value: () => (items.length || at.required ? items.map((each) => each.part.value() ?? null) : undefined),
    set(value) { items.length = 0; show(body); if (Array.isArray(value)) value.forEach((each) => add(each)); },
  };
}

function oneOf(several, schema, resolve, at) {
  const variants = several.map((each) => plainly(each, resolve).schema).filter((each) => each.type !== "null");
  const named = variants.map((each, place) => each.title || each.const || each.properties?.kind?.const || each.properties?.type?.const || (each.type ? `${each.type}` : `choice ${place + 1}`));
  let part = null;
  const body = h("div", { class: "fields" });
  const control = h("select", { "aria-label": `Which ${at.name || "choice"}`, onchange: () => choose(control.value) },
    !at.required && h("option", { value: "" }, "Not given"), named.map((name, place) => h("option", { value: String(place) }, String(name))));
  function choose(place) {
    control.value = place;
    part = place === "" ? null : field(variants[Number(place)], resolve, { ...at, required: true, depth: at.depth + 1 });
    show(body, part && part.element);
  }
  choose(at.required ? "0" : "");
  const element = h("fieldset", { "data-path": `${at.path}?` }, h("legend", {}, h("span", { dir: "auto" }, at.name || "one of"), " ", at.required ? h("span", { class: "needed" }, "required") : h("span", { class: "dim" }, "optional")),
    h("p", { class: "hint", dir: "auto", hidden: !schema.description }, schema.description || ""), control, body, h("p", { class: "fault", role: "alert", hidden: true }));
  const fits = (variant, value) => variant.type === (Array.isArray(value) ? "array" : value === null ? "null" : Number.isInteger(value) && variant.type === "integer" ? "integer" : typeof value) && (typeof value !== "object" || (variant.required || []).every((name) => name in value));
  return {
    element,
    value: () => part?.value(),
    set(value) { if (value === undefined) { choose(at.required ? "0" : ""); return; } const place = variants.findIndex((each) => fits(each, value)); choose(String(Math.max(place, 0))); part.set(value); },
  };
}
