// JSON without loss: a number that JavaScript cannot hold keeps its digits, on the way in and on the way out.

export class Exact {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
}

// An unguessable marker: the text after it in a string is a number.
const MARK = `exact-${crypto.getRandomValues(new Uint32Array(4)).join("")}:`;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, "g");
const LOSES = /(?:^|[[:,\s])-?(?:\d{16}|[\d.]{17}|\d[\d.]*[eE][-+]?\d{3})/; // such a number may be more than JavaScript holds
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

// The number that a text means: as JavaScript has it where that is written alike, otherwise with its digits.
export function number(text) {
  const value = Number(text);
  if (String(value) === text || Number.isNaN(value)) return value;
  return new Exact(text.replace(/^(-?)0*(?=\d)/, "$1").replace(/^(-?)\./, "$10.")); // a field takes 007 and .5, JSON does not
}

export function parse(text) {
  const plain = JSON.parse(text); // says what is wrong with it, in words of the text as it was given
  if (!LOSES.test(text)) return plain;
  const marked = text.replace(TOKEN, (token) => (token[0] === '"' || !(number(token) instanceof Exact) ? token : `"${MARK}${token}"`));
  try {
    return JSON.parse(marked, (key, value) => (typeof value === "string" && value.startsWith(MARK) ? new Exact(value.slice(MARK.length)) : value));
  } catch {
    return plain; // nested deeper than a function can follow
  }
}

export function write(value, indent) {
  let hasExact = false;
  const text = JSON.stringify(value, (key, each) => (each instanceof Exact ? ((hasExact = true), MARK + each) : each), indent);
  return hasExact ? text.replace(MARKED, "$1") : text;
}
