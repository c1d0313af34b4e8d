// A form made from a JSON Schema. What it cannot show as fields is JSON text; a fault is shown at the field it belongs to.

import { button, fresh, h, shortened, show } from "./dom.js";
import { Exact, number as numberOf, parse, write } from "./json.js";

const CONTROLS = "input, select, textarea";
const DEEPEST = 12, MOST = 200; // levels, and fields below the second one: what goes on is JSON text

// `resolve` finds what a $ref names. A form has `element`, `value()`, `set(value)`, `tell(faults)`, and `check()`, which
// throws what its fields have to say against what stands in them.
export function schemaForm(schema, resolve) {
  const form = field(schema, resolve, { name: "", path: "", required: true, depth: 0, made: { number: 0 } });
  // What was wrong may be right once it is changed.
  form.element.addEventListener("input", ({ target }) => { target.removeAttribute("aria-invalid"); const told = target.closest("[data-path]")?.querySelector(":scope > .fault"); if (told) told.hidden = true; });
  return {
    ...form,
    tell(faults) {
      for (const old of form.element.querySelectorAll(".fault")) { old.textContent = ""; old.hidden = true; }
      for (const each of form.element.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
      const lost = faults.filter((fault) => !mark(form.element, fault));
      form.element.querySelector("[aria-invalid]")?.focus();
      return lost;
    },
    check() {
      const wrong = [...form.element.querySelectorAll(CONTROLS)].filter((each) => each.checkVisibility() && !each.checkValidity());
      if (wrong.length) throw new Unreadable(...wrong.map((each) => ({ place: each, message: each.validationMessage })));
    },
  };
}

// What stands in fields cannot be sent; each fault has its place, or the path of an argument.
export class Unreadable extends Error {
  constructor(...faults) { super(faults[0].message); this.faults = faults; }
}

export function read(source, place) {
  try {
    return parse(source);
  } catch (error) {
    throw new Unreadable({ place, message: `This is not JSON: ${error.message}` });
  }
}

// The path of the first thing in a value that another does not have, or has otherwise; null where it has all of it.
export function lost(given, made, path = "") {
  const isDeep = (value) => value !== null && typeof value === "object" && !(value instanceof Exact);
  if (!isDeep(given) || !isDeep(made) || Array.isArray(given) !== Array.isArray(made) || given.length !== made.length) return write(given) === write(made) ? null : path || "this value";
  for (const key of Object.keys(given)) {
    const found = lost(given[key], own(made, key), Array.isArray(given) ? `${path}[${key}]` : below(path, key));
    if (found) return found;
  }
  return null;
}

// The nearest field to what a fault names: of `lines[0].item` that, or `lines[0]`, or `lines`.
function mark(root, { argument, place, message }) {
  let field = place?.closest("[data-path]");
  for (let path = argument; path && !field; path = path.replace(/(\.[^.[\]]+|\[[^\]]*\]|^[^.[]+)$/, "")) field = [...root.querySelectorAll("[data-path]")].find((each) => each.dataset.path === path);
  const told = field?.querySelector(":scope > .fault");
  if (!told) return false;
  told.textContent = told.textContent ? `${told.textContent} ${message}` : message;
  told.hidden = false;
  (place || field.querySelector(CONTROLS) || field).setAttribute("aria-invalid", "true");
  return true;
}

function field(given, resolve, at) {
  try {
    return fieldOf(plainly(given, resolve), resolve, { ...at, title: titleOf(given, at.name) });
  } catch {
    return json({}, at); // an invalid schema: the server validates the value
  }
}

// The title of a field is its label; one that only repeats its name, and that of a type, is not.
function titleOf(given, name) {
  const plain = (text) => text.toLowerCase().replace(/[\s_-]/g, "");
  return typeof given?.title === "string" && given.title && !given.$ref && name && plain(given.title) !== plain(name) ? given.title : null;
}

const deeper = ({ depth, made }, more) => ({ depth: depth + 1, made, required: true, ...more });

function fieldOf({ schema, isNullable }, resolve, at) {
  const several = schema.oneOf || schema.anyOf;
  if (schema.const !== undefined) return choice([[schema.const]], schema, at, isNullable);
  if (Array.isArray(schema.enum)) return choice(schema.enum.map((each) => [each]), schema, at, isNullable && !schema.enum.includes(null));
  if (several?.every((each) => each?.const !== undefined)) return choice(several.map((each) => [each.const, each.title]), schema, at, isNullable);
  at = { ...at, isNullable };
  if (at.depth > DEEPEST || (at.depth > 2 && ++at.made.number > MOST)) return json(schema, at);
  if (several) return oneOf(several, schema, resolve, at);
  const types = [schema.type ?? (schema.properties ? "object" : schema.items && "array")].flat().filter((each) => each !== "null"), type = types.length === 1 ? types[0] : null;
  if (type === "object") return object(schema, resolve, at);
  if (type === "array" && !Array.isArray(schema.prefixItems)) return array(schema, resolve, at);
  if (type === "boolean") return choice([[true], [false]], schema, at, isNullable);
  if (type === "integer" || type === "number") return number(schema, type, at);
  return type === "string" ? text(schema, at) : json(schema, at);
}

// References followed, parts put together, and a choice between something and null taken as that something.
function plainly(given, resolve, budget = { left: 50 }) {
  let schema = typeof given === "object" && given ? given : {}, isNullable = false;
  while (budget.left-- > 0) {
    const { $ref, allOf, anyOf, oneOf: one, ...beside } = schema, several = anyOf || one;
    const real = several?.filter((each) => each?.type !== "null");
    if ($ref) schema = merged(resolve($ref), { ...schema, $ref: undefined });
    else if (allOf) schema = [...allOf.map((each) => plainly(each, resolve, budget).schema), { ...schema, allOf: undefined }].reduce(merged);
    else if (real && real.length < several.length) { isNullable = true; schema = real.length === 1 ? merged(real[0], beside) : { ...beside, anyOf: real }; }
    else break;
  }
  return { schema, isNullable: isNullable || [schema.type].flat().includes("null") };
}

function merged(one, other) {
  const all = { ...one, ...Object.fromEntries(Object.entries(other).filter(([, value]) => value !== undefined)) };
  if (one.properties && other.properties) all.properties = { ...one.properties, ...other.properties };
  if (one.required && other.required) all.required = [...one.required, ...other.required];
  return all;
}

const own = (value, name) => (value && typeof value === "object" && Object.hasOwn(value, name) ? value[name] : undefined);
const below = (path, name) => (path ? `${path}.${name}` : name);

// What every field has: its name, whether it must be given, words about it, and a place for faults. Where null is something
// else than nothing, a switch gives it; `part.begin` makes what is behind it.
function framed(schema, at, part, control, ...inside) {
  const told = fresh("told"), words = [schema.description, at.words, limits(schema)].filter(Boolean).map((each, place, all) => (all[place + 1] ? String(each).replace(/\.$/, "") : each)).join(" · ");
  const none = at.isNullable && h("input", { type: "checkbox", onchange: turn });
  const body = h(control && inside.some(Boolean) ? "div.controls" : "div", control, inside);
  const name = [h("span", at.title || String(at.name || schema.title || "input")), " ", at.title && [h("code.dim", at.name), " "], h(at.required ? "span.needed" : "span.dim", at.required ? "required" : "optional")];
  const empty = none && h("label.switch.null", { hidden: !at.required && schema.default === null }, none, "null");
  if (control) {
    control.id ||= fresh("field");
    control.required = at.required;
    control.setAttribute("aria-describedby", told);
    if (at.bare) control.setAttribute("aria-label", at.name);
  }
  const title = at.bare ? empty : control ? h("div.named", h("label", { for: control.id }, name), empty) : [h("legend", name), empty];
  const hint = h("p.hint", { id: told, hidden: !words }, words);
  const element = h(control || at.bare ? "div.field" : "fieldset", { "data-path": at.path }, title, control ? [body, hint] : [hint, body], h("p.fault", { role: "alert", hidden: true }));
  function turn() {
    body.hidden = none.checked;
    if (!none.checked) part.begin?.();
  }
  function set(value) {
    if (none) {
      none.checked = value === null || (value === undefined && at.required);
      if (value === null) empty.hidden = false;
      turn();
    }
    if (!none?.checked) part.set(value);
  }
  set(undefined);
  return { element, set, value: () => (none?.checked ? null : part.value()) };
}

const LIMITS = { minimum: "from", exclusiveMinimum: "above", maximum: "to", exclusiveMaximum: "below", multipleOf: "in steps of", minLength: "at least # characters", maxLength: "at most # characters",
  minItems: "at least # items", maxItems: "at most # items", pattern: "like", default: "default", examples: "for example" };

function limits(schema) {
  const texts = Object.entries(LIMITS).map(([name, words]) => {
    const limit = name === "examples" ? schema.examples?.[0] : schema[name];
    if (limit === undefined || limit === null || limit === "" || (name.startsWith("min") && name !== "minimum" && !limit)) return "";
    const text = name === "pattern" ? limit : write(limit);
    return words.includes("#") ? words.replace("#", text).replace(/^(.*) 1 (.*)s$/, "$1 1 $2") : `${words} ${shortened(text, 200)}`;
  });
  return texts.filter(Boolean).join(", ").replace(/^(from|above) (\S+), (to|below) /, "$1 $2 $3 ");
}

function choice(options, schema, at, isNullable) {
  const all = isNullable ? [...options, [null]] : options;
  const control = h("select", (!at.required || all.length > 1) && h("option", { value: "" }, at.required ? "Choose…" : "Not given"),
    all.map(([each, title], place) => h("option", { value: place }, title || (typeof each === "string" ? each : write(each)))));
  return framed(schema, { ...at, isNullable: false }, {
    value: () => (control.value === "" ? undefined : all[control.value][0]),
    set(value) { const place = all.findIndex(([each]) => value !== undefined && write(each) === write(value)); control.value = place >= 0 ? place : at.required && all.length === 1 ? 0 : ""; },
  }, control);
}

function number(schema, type, at) {
  const step = (schema.minimum === undefined && schema.multipleOf) || (type === "integer" ? 1 : "any");
  const control = h("input", { type: "number", inputmode: type === "integer" ? "numeric" : "decimal", step, min: schema.minimum, max: schema.maximum });
  return framed(schema, at, {
    value() {
      if (control.validity.badInput) throw new Unreadable({ place: control, message: "This is not a number." });
      return control.value === "" ? undefined : numberOf(control.value);
    },
    set(value) { control.value = value ?? ""; },
  }, control);
}

const KINDS = { date: "date", time: "time", "date-time": "datetime-local", email: "email", uri: "url", url: "url" };

function text(schema, at) {
  const kind = KINDS[schema.format], isSecret = schema.format === "password";
  if (kind === "datetime-local") return moment(schema, at);
  const isLong = !kind && !isSecret && ((schema.maxLength ?? 0) > 200 || /text|body|content|markdown|prompt|code|query/i.test(at.name));
  // An empty text is left out, unless it was intended: the field is required and was edited, or the value was loaded.
  let isMeant = false;
  const changed = () => {
    const long = [...control.value].length;
    isMeant = at.required && !kind;
    control.setCustomValidity(long > schema.maxLength ? `At most ${schema.maxLength} characters.` : long && long < schema.minLength ? `At least ${schema.minLength} characters.` : "");
  };
  const control = isLong ? h("textarea", { rows: "3", spellcheck: "true", oninput: changed }) : h("input", { type: kind || "text", class: isSecret ? "secret" : null, step: kind === "time" ? "1" : null, autocomplete: "off", oninput: changed });
  // A colour can also be typed: an input of colours alone always has one.
  const palette = schema.format === "color" && h("input", { type: "color", "aria-label": `Choose ${at.name}`, oninput() { control.value = palette.value; } });
  const reveal = isSecret && button("Show", () => { const isShown = control.classList.toggle("secret"); reveal.textContent = isShown ? "Show" : "Hide"; }, "quiet");
  const file = schema.contentEncoding === "base64" && h("input", { type: "file", "aria-label": `File for ${at.name}`, onchange({ target }) {
    const reader = new FileReader();
    reader.onload = () => { control.value = reader.result.split(",")[1]; };
    reader.readAsDataURL(target.files[0]);
  } });
  const given = () => (kind === "time" && control.value.length === 5 ? `${control.value}:00` : control.value);
  return framed(schema, at, { value: () => (control.value === "" && !isMeant ? undefined : given()), set(value) { control.value = value ?? ""; isMeant = value === ""; if (palette && /^#[0-9a-f]{6}$/i.test(value)) palette.value = value; } }, control, file, palette, reveal);
}

// A moment in the person's own time zone; one that came and was not changed is given back as it was written.
function moment(schema, at) {
  const control = h("input", { type: "datetime-local", step: "1" });
  let came = null;
  return framed(schema, { ...at, words: "in your time zone" }, {
    value: () => (!control.value ? undefined : control.value === came?.shown ? came.value : new Date(control.value).toISOString()),
    set(value) {
      const date = new Date(value ?? NaN);
      control.value = isNaN(date) ? "" : new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
      came = { shown: control.value, value };
    },
  }, control);
}

function json(schema, at) {
  const control = h("textarea.code", { rows: "3", placeholder: "JSON" });
  return framed(schema, { ...at, isNullable: false }, { value: () => (control.value.trim() === "" ? undefined : read(control.value, control)), set(value) { control.value = value === undefined ? "" : write(value, 2); } }, control);
}

function object(schema, resolve, at) {
  const required = new Set(schema.required || []), properties = schema.properties || {};
  const others = schema.additionalProperties || Object.values(schema.patternProperties || {})[0] || schema.additionalProperties;
  const names = Object.keys(properties).sort((one, other) => required.has(other) - required.has(one));
  let parts = null, extras = [];
  const body = h("div.fields"), more = h("div.fields");
  const add = (others ?? !schema.properties) && button("Add a property", () => extra("").name.focus(), "quiet");
  const toggle = at.depth > 0 && !at.required && button("Add", () => (parts ? drop() : begin()), "quiet");
  function begin() {
    if (parts) return;
    parts = names.map((name) => [name, field(properties[name], resolve, deeper(at, { name, path: below(at.path, name), required: required.has(name) }))]);
    show(body, parts.map(([, part]) => part.element), more, add, !names.length && !add && h("p.dim", "No arguments."));
    if (toggle) toggle.textContent = "Remove";
  }
  function drop() { parts = null; extras = []; show(body); show(more); toggle.textContent = "Add"; }
  // A property that the schema does not name: what came with one keeps it, and where it is allowed one can be added.
  function extra(text) {
    const part = field(others, resolve, deeper(at, { name: "Value", path: below(at.path, text), bare: true }));
    const name = h("input", { value: text, "aria-label": "Name of the property", placeholder: "Name", oninput() { part.element.dataset.path = below(at.path, name.value); } });
    const entry = { name, part };
    more.append(h("div.extra", name, part.element, button("Remove", (event) => { extras = extras.filter((each) => each !== entry); event.target.parentElement.remove(); }, "quiet")));
    extras.push(entry);
    return entry;
  }
  const part = {
    begin: () => at.required && begin(),
    value() {
      if (!parts) return undefined;
      const known = parts.map(([name, each]) => [name, each.value()]).filter(([, value]) => value !== undefined);
      return Object.fromEntries([...known, ...extras.map(({ name, part }) => [name.value, filledIn(part)])]);
    },
    set(value) {
      const given = value && typeof value === "object" && !Array.isArray(value) ? value : null, old = parts;
      if (given || at.required) begin(); else if (parts) drop();
      for (const [name, each] of parts || []) if (old || own(given, name) !== undefined) each.set(own(given, name)); // a new one is empty
      extras = [];
      show(more);
      for (const name of Object.keys(given || {})) if (!names.includes(name)) extra(name).part.set(given[name]);
    },
  };
  if (at.depth > 0) return framed(schema, at, part, null, toggle, body);
  begin();
  return { element: body, ...part };
}

// An added property must have a value.
function filledIn(part) {
  const value = part.value();
  if (value === undefined) throw new Unreadable({ place: part.element.querySelector(CONTROLS), message: "Fill it in, or remove it." });
  return value;
}

function array(schema, resolve, at) {
  let items = [];
  const body = h("ol.items");
  const path = (place) => `${at.path}[${place}]`;
  function add(value) {
    const part = field(schema.items, resolve, deeper(at, { name: at.name, path: path(items.length), bare: true }));
    const item = { part, line: h("li", part.element, button("Remove", () => {
      items = items.filter((each) => each !== item);
      item.line.remove();
      items.forEach((each, place) => { const old = each.part.element.dataset.path; for (const one of [each.part.element, ...each.line.querySelectorAll("[data-path]")]) one.dataset.path = path(place) + one.dataset.path.slice(old.length); });
    }, "quiet")) };
    items.push(item);
    body.append(item.line);
    if (value !== undefined) part.set(value);
  }
  const more = button("Add an item", () => { add(); items.at(-1).line.querySelector(`${CONTROLS}, button`).focus(); }, "quiet");
  return framed(schema, at, {
    value: () => (items.length || at.required ? items.map(({ part }) => filledIn(part)) : undefined),
    set(value) { items = []; show(body); if (Array.isArray(value)) value.forEach(add); },
  }, null, body, more);
}

function oneOf(several, schema, resolve, at) {
  const { oneOf: _, anyOf, title, description, ...beside } = schema;
  const variants = several.map((each) => merged(beside, plainly(each, resolve).schema));
  const named = variants.map((each, place) => each.title || each.const || Object.values(each.properties || {}).find((one) => one?.const)?.const || several[place].$ref?.split("/").at(-1) || each.required?.join(", ") || each.type || `choice ${place + 1}`);
  let part = null;
  const body = h("div.fields");
  const control = h("select", { "aria-label": `Which ${at.name || "choice"}`, onchange: () => choose(control.value) },
    !at.required && h("option", { value: "" }, "Not given"), named.map((name, place) => h("option", { value: place }, String(name))));
  function choose(place) {
    control.value = place;
    part = place === "" ? null : field(variants[place], resolve, deeper(at, { name: at.name, path: at.path, bare: true }));
    show(body, part?.element);
  }
  // The first that takes all of a value is the one that is meant.
  function takes(place, value) {
    choose(place);
    part.set(value);
    try { return !lost(value, part.value()); } catch { return false; }
  }
  return framed({ description: schema.description, default: schema.default }, at, {
    value: () => part?.value(),
    set(value) { if (value === undefined) choose(at.required ? "0" : ""); else if (!variants.some((_, place) => takes(place, value))) takes(0, value); },
  }, null, control, body);
}
