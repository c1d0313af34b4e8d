// A JSON Schema for reading: each field with its type, whether it is always there, and what is said of it.

import { copied, h, shortened } from "./dom.js";
import { write } from "./json.js";

const DEEPEST = 6, MOST = 300;

export function schemaView(schema, resolve) {
  const made = { number: 0 }, fields = schema && typeof schema === "object" ? listed(schema, resolve, 0, made) : null;
  return h("div.schema", h("p", h("strong", kind(schema, resolve)), schema?.description && [" ", h("span.dim", String(schema.description))]), fields,
    h("details", h("summary", "JSON Schema"), copied(shortened(write(schema ?? {}, 2), 100_000), () => write(schema ?? {}, 2))));
}

function listed(given, resolve, depth, made) {
  const schema = plain(given, resolve), inner = schema.items && typeof schema.items === "object" ? plain(schema.items, resolve) : schema;
  const properties = inner.properties || {}, required = new Set(Array.isArray(inner.required) ? inner.required : []);
  const names = Object.keys(properties);
  if (!names.length || depth > DEEPEST) return null;
  return h("dl.fields-of", names.map((name) => {
    if (++made.number > MOST) return null;
    const field = properties[name] && typeof properties[name] === "object" ? properties[name] : {}, words = [field.description, plain(field, resolve).description].find((each) => typeof each === "string");
    return [h("dt", h("code", name)), h("dd", h("span.type", kind(field, resolve)), !required.has(name) && h("span.dim", " optional"), words && h("p.hint", words), listed(field, resolve, depth + 1, made))];
  }), made.number > MOST && h("dd.dim", "…"));
}

// A reference followed, and something or null taken as that something; what goes round in circles ends.
function plain(schema, resolve, left = 20) {
  if (!schema || typeof schema !== "object" || !left) return {};
  if (typeof schema.$ref === "string") return { ...plain(resolve(schema.$ref), resolve, left - 1), ...(schema.description ? { description: schema.description } : {}) };
  const several = [schema.anyOf, schema.oneOf].find(Array.isArray)?.filter((each) => each?.type !== "null");
  return several?.length === 1 ? plain(several[0], resolve, left - 1) : schema;
}

function kind(schema, resolve, depth = 0) {
  if (schema === true || !schema || !Object.keys(schema).length) return "anything";
  const at = plain(schema, resolve), isNullable = [schema.anyOf, schema.oneOf].find(Array.isArray)?.some((each) => each?.type === "null"), back = (words) => (isNullable ? `${words} or null` : words);
  if (Array.isArray(at.enum)) return back(shortened(at.enum.map((each) => write(each)).join(" | "), 120));
  if (at.const !== undefined) return write(at.const);
  const several = [at.anyOf, at.oneOf].find(Array.isArray);
  if (several && depth < 3) return shortened(several.map((each) => kind(each, resolve, depth + 1)).join(" | "), 160);
  if (at.type === "array" || at.items) return back(`list of ${depth < 3 ? kind(at.items ?? true, resolve, depth + 1) : "…"}`);
  const words = [at.type ?? (at.properties ? "object" : "anything")].flat().map(String).join(" or ");
  return back(at.format ? `${words} (${at.format})` : words);
}

// Finds what a reference inside one document, or one schema, names.
export const resolver = (root) => (reference) => String(reference).split("/").slice(1).reduce((at, part) => at?.[safely(part).replaceAll("~1", "/").replaceAll("~0", "~")], root) || {};

function safely(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
