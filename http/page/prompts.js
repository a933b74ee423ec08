// SPDX-License-Identifier: Apache-2.0
// The prompts of each key: how much of them was cached, and where the last one first differed from those before it.

import { byId, keep, make, say, show } from "./dom.js";
import { count, share } from "./format.js";

export function showPrompts(rows) {
  show(byId("prompts-section"), rows.length > 0);
  keep(byId("prompt-rows"), rows, (row) => row.key, createRow, updateRow);
}

function createRow() {
  const numbers = Array.from({ length: 3 }, () => make("td", { class: "number" }));
  return make("tr", {}, make("th", { scope: "row" }), ...numbers, make("td", { class: "route" }));
}

function updateRow(element, row) {
  const [key, prompts, tokens, cached, difference] = element.children;
  say(key, row.key);
  say(prompts, count(row.prompts));
  say(tokens, count(row.prompt_tokens));
  say(cached, share(row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null));
  say(difference, row.difference ? place(row.difference) : "");
}

function place({ token, of, part, message }) {
  return `token ${count(token)} of ${count(of)}, ${part}${message === null ? "" : `, message ${message}`}`;
}
