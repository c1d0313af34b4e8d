// Small pictures made of elements of SVG, which the policy of the page allows: bars over time, and a strip of states.

import { h } from "./dom.js";

export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) if (value != null && value !== false) element.setAttribute(name, value);
  element.append(...children.flat().filter((each) => each != null && each !== false));
  return element;
}

// A bar for each number, the last at the end; what they say stands beside them as text.
export function bars(label, numbers, kind = "") {
  const most = Math.max(...numbers, 1), step = 240 / numbers.length;
  return svg("svg", { viewBox: "0 0 240 44", preserveAspectRatio: "none", class: `chart ${kind}`, role: "img", "aria-label": label },
    svg("path", { d: "M0 43.5H240", class: "axis" }),
    numbers.map((each, at) => each > 0 && svg("rect", { x: at * step + 0.5, width: Math.max(step - 1, 1), y: 43 - (each / most) * 41, height: Math.max((each / most) * 41, 2) })));
}

// How long a call took, on a scale from one millisecond to ten seconds on which each third is ten times the one before.
export const lasting = (ms) => svg("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", class: "chart lasted", "aria-hidden": "true" },
  svg("rect", { width: 100, height: 4, class: "whole" }), svg("rect", { width: Math.min(Math.log10(Math.max(ms, 1)) * 25 + 1, 100), height: 4 }));

// What lasted how long, as a strip: each part has a beginning and a kind.
export function strip(label, parts, until) {
  const begin = parts[0][0], whole = Math.max(until - begin, 1);
  return svg("svg", { viewBox: "0 0 240 10", preserveAspectRatio: "none", class: "chart strip", role: "img", "aria-label": label },
    parts.map(([from, kind], at) => {
      const x = ((from - begin) / whole) * 240, end = (((parts[at + 1]?.[0] ?? until) - begin) / whole) * 240;
      return svg("rect", { x, y: 0, height: 10, width: Math.max(end - x, 1.5), class: kind });
    }));
}

export const tile = (title, value, words, ...more) => h("section.card.tile", { "aria-label": title }, h("h2", title), h("p.value", value), h("p.dim.small", words), more);
