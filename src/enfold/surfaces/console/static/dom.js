// Elements made of plain values. Text is always a text node: what strangers wrote is shown, never parsed.

export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export function show(place, ...children) {
  place.replaceChildren(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
}

export function announce(text) {
  document.getElementById("live").textContent = text;
}

let last = 0;
export const fresh = (prefix) => `${prefix}-${++last}`;

export const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many || `${one}s`}`;

export function bytes(size) {
  if (size === null || size === undefined) return "";
  return size < 1000 ? `${size} B` : size < 1e6 ? `${(size / 1000).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

export function took(ms) {
  return ms < 1 ? "< 1 ms" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

export function clock(ms) {
  const date = new Date(ms);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

export const when = (ms) => h("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toLocaleString() }, clock(ms));

// A row of choices of which one is on; the arrow keys move between them.
export function tabs(label, parts) {
  const panel = h("div", { role: "tabpanel", class: "panel", tabindex: "0", id: fresh("panel") });
  const buttons = parts.map(([name, make], place) =>
    h("button", { role: "tab", type: "button", id: fresh("tab"), "aria-controls": panel.id, onclick: () => choose(place) }, name));
  function choose(place) {
    buttons.forEach((button, each) => {
      button.setAttribute("aria-selected", String(each === place));
      button.tabIndex = each === place ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", buttons[place].id);
    show(panel, parts[place][1]());
  }
  const list = h("div", { role: "tablist", "aria-label": label, onkeydown(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length;
    choose(next);
    buttons[next].focus();
  } }, buttons);
  choose(0);
  return { element: h("div", { class: "tabs" }, list, panel), choose };
}

export function copyButton(text) {
  const button = h("button", { type: "button", class: "quiet copy", async onclick() {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
      announce("Copied");
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  } }, "Copy");
  return button;
}

export function empty(title, ...words) {
  return h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, words));
}

export function failed(error, again) {
  return h("div", { class: "failure", role: "alert" },
    h("strong", {}, error.code || "Not reached"), " ", h("span", { dir: "auto" }, error.message),
    again && h("button", { type: "button", class: "quiet", onclick: again }, "Try again"));
}
