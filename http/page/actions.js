// SPDX-License-Identifier: Apache-2.0
// The buttons: a question first, then the order, whose progress comes back with the snapshots.

import { byId, keep, make, mark, say, show } from "./dom.js";
import { capital, sentence } from "./feed.js";
import { duration } from "./format.js";
import { headers } from "./keys.js";

const ROLES = { prefill: "compute prompts", decode: "generate answers", mixed: "do both" };
// For each action: the question, what it will do, and the word that agrees.
const ASKED = {
  drain: [
    (name) => `Drain ${name}?`,
    "It takes no new requests. Those it has may end; after the drain timeout other workers go on with them. Its " +
      "process and cache stay.",
    "Drain",
  ],
  undrain: [(name) => `Put ${name} back to work?`, "It takes requests again at once.", "Undrain"],
  role: [
    (name) => `Give ${name} another role?`,
    "Its process, cache and present requests stay. It works in its new role from the next request on.",
    "Change role",
  ],
  restart: [
    (name) => `Restart ${name}?`,
    "It is drained first, then its process is replaced by a new one. Other workers serve meanwhile.",
    "Restart",
  ],
};

const dialog = byId("confirm");
const roles = byId("confirm-roles");
let pending = null;

export function act(action, row) {
  const [title, text, yes] = ASKED[action];
  say(byId("confirm-title"), title(row.name));
  say(byId("confirm-text"), text);
  say(byId("confirm-yes"), yes);
  show(roles, action === "role");
  if (action === "role") offerRoles(row.role);
  pending = { action, name: row.name };
  dialog.showModal();
  byId("confirm-no").focus();
}

function offerRoles(present) {
  const offered = Object.keys(ROLES).filter((role) => role !== present);
  roles.replaceChildren(roles.firstElementChild, ...offered.map((role, index) => {
    const input = make("input", { type: "radio", name: "role", value: role });
    input.checked = index === 0;
    return make("label", {}, input, make("span", { text: `${role}: ${ROLES[role]}` }));
  }));
}

dialog.addEventListener("submit", (event) => {
  event.preventDefault();
  const order = pending;
  const role = order?.action === "role" ? roles.querySelector("input:checked")?.value : undefined;
  dialog.close();
  if (order) send(order, role);
});
dialog.addEventListener("close", () => {
  pending = null;
});
byId("confirm-no").addEventListener("click", () => dialog.close());

async function send({ action, name }, role) {
  problem("");
  // A worker's name has letters, digits and these signs; a colon may stand in a path.
  const path = `workers/${encodeURIComponent(name).replaceAll("%3A", ":")}/${action}`;
  try {
    const response = await fetch(new URL(path, document.baseURI), {
      method: "POST",
      headers: { ...headers("admin"), "content-type": "application/json" },
      body: JSON.stringify(role ? { role } : {}),
    });
    if (!response.ok) problem(`${name}: ${await sentence(response)}.`);
  } catch {
    problem(`${name}: the proxy did not answer. Whether it was done is seen above.`);
  }
}

function problem(text) {
  say(byId("change-problem"), text && capital(text.replace(/\.\.$/, ".")));
  show(byId("change-problem"), Boolean(text));
  if (text) show(byId("changes-section"), true);
}

export function showChanges(changes) {
  show(byId("changes-section"), changes.length > 0 || !byId("change-problem").hidden);
  keep(byId("changes"), changes, (one) => one.number, createChange, updateChange);
}

function createChange(one) {
  const title = `${capital(one.action)} ${one.worker}${one.role ? ` as ${one.role}` : ""}`;
  const what = make("span", { class: "what", text: title });
  return make("li", {}, what, make("span", { class: "when" }), make("span", { class: "told" }));
}

function updateChange(element, one) {
  const [, when, told] = element.children;
  mark(element, "data-tone", one.outcome === null ? "wait" : one.failed ? "bad" : "good");
  say(when, one.outcome === null ? "under way" : one.failed ? "failed" : "done");
  when.title = `${duration(one.seconds_ago)} ago`;
  say(told, one.failed ? one.outcome : one.lines.join(" · "));
}
