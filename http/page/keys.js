// SPDX-License-Identifier: Apache-2.0
// The operator's keys: kept for this tab only, shown in the header Authorization, and never part of an address.

import { byId, say, show } from "./dom.js";

const dialog = byId("key-dialog");
let waiting = null;
let given = deferred();

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => {
    made.resolve = resolve;
  });
  return made;
}

// Wait until the operator has given any key.
export function nextKey() {
  return given.promise;
}

export function headers(kind) {
  const key = sessionStorage.getItem(`pontil-${kind}-key`) ?? sessionStorage.getItem("pontil-admin-key");
  return key ? { authorization: `Bearer ${key}` } : {};
}

// Ask for a key of this kind ("admin" or "chat"); return whether one was given.
export function askKey(kind, reason) {
  if (waiting) return waiting.promise;
  say(byId("key-text"), reason);
  byId("key-input").value = "";
  show(byId("key-problem"), false);
  waiting = { kind, ...deferred() };
  dialog.showModal();
  byId("key-input").focus();
  return waiting.promise;
}

dialog.addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key-input").value.trim();
  // A header takes these letters only, and a server's keys have no others.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    say(byId("key-problem"), "A key has letters, digits and signs, without blanks.");
    show(byId("key-problem"), true);
    return;
  }
  sessionStorage.setItem(`pontil-${waiting?.kind ?? "admin"}-key`, key);
  waiting?.resolve(true);
  given.resolve();
  given = deferred();
  dialog.close();
});

dialog.addEventListener("close", () => {
  byId("key-input").value = "";
  waiting?.resolve(false);
  waiting = null;
});
byId("key-no").addEventListener("click", () => dialog.close());
