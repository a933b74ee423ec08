// SPDX-License-Identifier: Apache-2.0
// Elements made by calls. All data goes into text nodes and attributes that hold no code: a name is never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// make("p", {class: "x", text: "…"}, child, …): `text` is the text, any other key an attribute; null leaves one out.
export function make(tag, options = {}, ...children) {
  return filled(document.createElement(tag), options, children);
}

export function svg(tag, options = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), options, children);
}

function filled(element, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Change a text only where it differs, so that a screen reader is told news only.
export function say(element, text) {
  const told = text === null || text === undefined ? "" : String(text);
  if (element.textContent !== told) element.textContent = told;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Make the children of `parent` those of `items`, in order, keeping the elements of known keys and their focus.
export function keep(parent, items, keyOf, create, update) {
  const known = parent.kept ?? (parent.kept = new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (wanted.has(key)) continue;
    wanted.add(key);
    let element = known.get(key);
    if (!element) {
      element = create(item);
      known.set(key, element);
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
}
