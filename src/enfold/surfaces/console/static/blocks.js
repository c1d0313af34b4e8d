// Content that is no JSON: texts, pictures, sounds and files, each shown as what it is, in the order in which they came.

import { button, bytes, copied, h, note } from "./dom.js";

const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;
const SOUNDS = /^audio\/(mpeg|mp3|mp4|aac|ogg|opus|wav|wave|x-wav|webm|flac)$/;
const isBase64 = (data) => typeof data === "string" && !/[^A-Za-z0-9+/=\s]/.test(data);
const TYPES = { text: "text", image: "data", audio: "data", resource: "resource", resource_link: "uri" };

// Whether a value is a content block of MCP.
export const isBlock = (value) => Boolean(value) && typeof value === "object" && Object.hasOwn(TYPES, value.type) && ["string", "object"].includes(typeof value[TYPES[value.type]]);

export function block(value, place = 1) {
  if (value.type === "text") return copied(String(value.text));
  if (value.type === "resource_link") return h("p.file", h("strong", String(value.title || value.name || "Resource")), " ", h("code", String(value.uri)), value.mimeType && h("span.dim", ` ${value.mimeType}`), value.description && note(String(value.description)));
  if (value.type !== "resource") return file(value.data, value.mimeType, `${value.type} ${place}`, place);
  const { uri, text, blob, mimeType } = value.resource || {};
  const name = String(uri || "").split(/[/?#]/).filter(Boolean).at(-1) || `resource ${place}`;
  return [note("Resource ", h("code", String(uri ?? ""))), typeof text === "string" ? copied(text) : file(blob, mimeType, name, place)];
}

// Bytes in base64: pictures and sounds are shown, texts read, and all others can be saved.
export function file(data, type, name, place = 1) {
  const kind = String(type || "application/octet-stream").split(";")[0].trim().toLowerCase();
  if (!isBase64(data)) return note("This content is not base64, and cannot be shown.");
  const size = Math.floor((data.replace(/[\s=]/g, "").length * 3) / 4);
  const save = h("p.file", h("strong", name), h("span.dim", ` ${kind}, ${bytes(size)} `), button("Download", () => download(decoded(data), name, kind), "quiet"));
  if (IMAGES.test(kind)) return h("figure", h("img", { src: `data:${kind};base64,${data}`, alt: `Image ${place} of the result` }), save);
  if (SOUNDS.test(kind)) return h("figure", h("audio", { controls: true, preload: "metadata", src: URL.createObjectURL(new Blob([decoded(data)], { type: kind })), "aria-label": `Audio ${place} of the result` }), save);
  if (kind.startsWith("text/") && size < 2e6) return h("figure", copied(new TextDecoder().decode(decoded(data))), save);
  return save;
}

// A saved file never has a type that a browser would open as a page.
function download(content, name, kind) {
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const ending = /\.\w{1,8}$/.test(name) ? "" : `.${{ "application/pdf": "pdf", "image/jpeg": "jpg", "audio/mpeg": "mp3", "image/svg+xml": "svg", "text/plain": "txt" }[kind] || kind.split("/")[1]?.replace(/[^a-z0-9].*$/, "") || "bin"}`;
  h("a", { href: url, download: name.replace(/[^\w. -]/g, "_") + ending }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function decoded(data) {
  try {
    return Uint8Array.from(atob(data.replace(/\s/g, "")), (each) => each.charCodeAt(0));
  } catch {
    return new Uint8Array(); // cut off, or wrong in its length
  }
}

// Content blocks anywhere near the top of a value, which a tree would only show as text.
export function blocksIn(value, depth = 0, found = []) {
  if (!value || typeof value !== "object" || depth > 4 || found.length > 20) return found;
  if (isBlock(value) && (value.type === "image" ? IMAGES.test(value.mimeType) : value.type === "audio" && SOUNDS.test(value.mimeType))) { if (isBase64(value.data)) found.push(value); }
  else for (const each of (Array.isArray(value) ? value : Object.values(value)).slice(0, 50)) blocksIn(each, depth + 1, found);
  return found;
}
