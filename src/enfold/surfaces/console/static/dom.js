// Elements made of plain values. Text is always a text node: untrusted text is shown, never parsed.

// A tag may name classes (`p.dim.small`); attributes and listeners come first, where there are any.
export function h(tag, ...children) {
  const [name, ...kinds] = tag.split(".");
  const element = document.createElement(name);
  if (kinds.length) element.className = kinds.join(" ");
  const props = Object.getPrototypeOf(children[0] ?? "") === Object.prototype ? children.shift() : {};
  for (const [name, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...real(children));
  return element;
}

// Characters that turn the direction of what follows would let a text look like another: they are written out.
export const plainly = (each) => (typeof each === "string" ? each.replace(/[\u202a-\u202e\u2066-\u2069]/g, (one) => `\\u${one.charCodeAt(0).toString(16)}`) : each);
const real = (children) => children.flat(9).filter((each) => each != null && each !== false).map(plainly);

export function show(place, ...children) {
  place.replaceChildren(...real(children));
}

export const button = (words, onclick, kind) => h("button", { class: kind, onclick }, words);
export const chip = (words, kind = "", onclick = null) => (onclick ? button(words, onclick, `chip ${kind}`) : h("span", { class: `chip ${kind}` }, words));
export const note = (...words) => h("p.dim.small", words);
export const status = (...words) => h("p.dim.small", { role: "status" }, words);
export const heading = (title, ...more) => h("div.heading", h("h1", title), more);
export const filters = (...controls) => h("div.filters", { role: "search" }, controls);
export const to = (page, id, words, kind) => h("a", { href: `#/${page}/${encodeURIComponent(id)}`, class: kind }, words ?? id);

// What is chosen on a page stands in its address: reload, back and sharing find it again.
export function address(page, chosen) {
  const query = String(new URLSearchParams(Object.entries(chosen).filter(([, value]) => value)));
  history.replaceState(history.state, "", `#/${page}${query && `?${query}`}`);
}

// Scroll to the result of a request if it is below the form, as on a phone.
export function bring(element) {
  const { top, bottom } = element.getBoundingClientRect();
  if (top > innerHeight - 120 || bottom < 60) element.scrollIntoView({ block: "start" });
}

export function announce(text) {
  document.getElementById("live").textContent = text;
}

let last = 0;
export const fresh = (prefix) => `${prefix}-${++last}`;

export const long = (number) => number.toLocaleString("en");
export const count = (number, one) => `${long(number)} ${one}${number === 1 ? "" : "s"}`;

export const shortened = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

export function bytes(size) {
  if (size == null) return "";
  return size < 1000 ? `${size} B` : size < 1e6 ? `${(size / 1000).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

export function took(ms) {
  return ms < 1 ? "< 1 ms" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export function when(ms) {
  const date = new Date(ms), isToday = date.toDateString() === new Date().toDateString();
  return h("time", { datetime: date.toISOString(), title: moment(ms) }, isToday ? date.toLocaleTimeString() : date.toLocaleString());
}

// A moment in full, with its time zone; the year only of another one.
export function moment(ms) {
  const date = new Date(ms), year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  return date.toLocaleString(undefined, { year, month: "short", day: "numeric", hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
}

export const capital = (text) => text.replace(/^./u, (one) => one.toUpperCase());

export const select = (label, options, chosen, onchange) => h("select", { "aria-label": label, onchange }, options.map(([value, words]) => h("option", { value, selected: value === (chosen || "") }, words)));
export const TIMES = [["", "At any time"], ["3600000", "In the last hour"], ["86400000", "In the last day"], ["604800000", "In the last week"]];

// A table that scrolls by itself; each column has a name, and whether it holds numbers.
export function table(label, columns, body, kind) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, h("table", { class: kind },
    h("thead", h("tr", columns.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "end" : null }, h("bdi", name))))), body));
}

export function pairs(facts, kind) {
  return h("dl", { class: kind }, facts.filter(([, value]) => (value ?? "") !== "").map(([name, value]) => [h("dt", name), h("dd", value instanceof Node ? value : String(value))]));
}

// A row of choices of which one is on; the arrow keys, Home and End move between them.
export function tabs(label, parts) {
  let now = 0;
  const panel = h("div.panel", { role: "tabpanel", tabindex: "0", id: fresh("panel") });
  const buttons = parts.map(([name], place) =>
    h("button", { role: "tab", id: fresh("tab"), "aria-controls": panel.id, onclick: () => choose(place) }, name));
  function choose(place = now) {
    now = place;
    buttons.forEach((each, at) => {
      each.setAttribute("aria-selected", String(at === place));
      each.tabIndex = at === place ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", buttons[place].id);
    show(panel, parts[place][1]());
  }
  const list = h("div", { role: "tablist", "aria-label": label, onkeydown(event) {
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: -1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose((next + buttons.length) % buttons.length);
    buttons[now].focus();
  } }, buttons);
  choose(0);
  return { element: h("div.tabs", list, panel), choose };
}

// `text` is what is copied, where that is more than what is shown.
export const copied = (shown, text = () => shown) => h("div.copied", h("pre.raw", { dir: "ltr", tabindex: "0" }, shown), copyButton("Copy", text, "quiet copy"));

export function copyButton(words, text, kind = "quiet") {
  const copy = button(words, async () => {
    try {
      await navigator.clipboard.writeText(text());
      copy.textContent = "Copied";
    } catch (error) {
      copy.textContent = error.code === undefined ? error.message : "Select the text and copy it"; // the browser has codes
    }
    announce(copy.textContent);
    setTimeout(() => (copy.textContent = words), 1500);
  }, kind);
  return copy;
}

// A search box; `changed` is called on every key, or with `once` when the input is complete.
export function searchbox(label, placeholder, value, changed, once) {
  return h("input", { type: "search", "aria-label": label, placeholder: placeholder || label, autocomplete: "off", value: value || "", [once ? "onchange" : "oninput"]: changed });
}

export function empty(title, ...words) {
  return h("div.empty", h("h2", title), h("p", words));
}

export function failed(error, again) {
  return h("div.failure", { role: "alert" },
    h("strong", error.code || "Not reachable"), " ", h("span", error.message),
    again && button("Try again", again, "quiet"));
}
