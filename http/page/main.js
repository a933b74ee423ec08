// SPDX-License-Identifier: Apache-2.0
// The live page: shows each snapshot of the server.

import { showChanges } from "./actions.js";
import { nameModel } from "./chat.js";
import { byId, keep, make, mark, say } from "./dom.js";
import { follow } from "./feed.js";
import { bytes, count, duration, rate } from "./format.js";
import { askKey } from "./keys.js";
import { showMap } from "./map.js";
import { showPrompts } from "./prompts.js";
import { isRecorded, openRecording, readRecording } from "./recording.js";
import { showRequests } from "./requests.js";
import { spark } from "./spark.js";
import { verdict } from "./state.js";

let lost = null;
let spoken = "";

function showSnapshot(snapshot) {
  lost = null;
  mark(document.body, "data-lost", null);
  const { proxy } = snapshot;
  const told = verdict(snapshot);
  showVerdict(told.tone, told.text);
  document.title = `${told.tone === "good" ? "" : "! "}${proxy.model} · pontil`;
  say(byId("model"), proxy.model);
  nameModel(proxy.model);
  say(byId("where"), whereOf(proxy));
  showTotals(snapshot.totals);
  showMap(snapshot);
  showChanges(snapshot.changes);
  showRequests(snapshot.requests);
  showPrompts(snapshot.prompts);
  say(byId("footer"), `pontil ${proxy.version}. Figures are of the last three seconds, states of the last one.`);
}

function whereOf(proxy) {
  const embeds = proxy.embedding_model ? ` · embeds by ${proxy.embedding_model}` : "";
  const one = proxy.proxies > 1 ? `seen by ${proxy.name}, one of ${proxy.proxies} proxies: requests are its own` : "";
  return `${one}${embeds}`;
}

const TOTALS = [
  ["Tokens/s", "Tokens delivered to clients a second", (one) => one.delivered_per_second, rate],
  ["Prompt tokens/s", "Prompt tokens computed a second", (one) => one.prompt_tokens_per_second, rate],
  ["KV moved/s", "Bytes of KV blocks moved from prefill to decode a second", (one) => one.kv_bytes_per_second, bytes],
  ["Answering", "Requests whose answer has begun", (one) => one.running, count],
  ["Waiting", "Requests that wait for their first token", (one) => one.waiting, count],
];

function showTotals(totals) {
  keep(byId("totals"), TOTALS, ([name]) => name, createTotal, (element, [, , value, shown]) => {
    say(element.children[1], shown(value(totals)));
    element.line.add(value(totals));
  });
}

function createTotal([name, says]) {
  const line = spark();
  const element = make("div", { title: says }, make("dt", { text: name }), make("dd"), line.element);
  element.line = line;
  return element;
}

function showProblem(text) {
  lost ??= performance.now();
  mark(document.body, "data-lost", "yes");
  const since = duration((performance.now() - lost) / 1000);
  showVerdict("bad", text ?? `No connection to the proxy for ${since}: trying again. What is shown is old.`);
}

// Show the verdict. It is spoken when it changes by more than its numbers, which change each second.
function showVerdict(tone, text) {
  mark(byId("verdict"), "data-tone", tone);
  say(byId("verdict-text"), text);
  const kind = `${tone} ${text.replaceAll(/\d+/g, "")}`;
  if (kind === spoken) return;
  spoken = kind;
  say(byId("verdict-spoken"), text);
}

byId("key-button").addEventListener("click", () => {
  askKey("admin", "The admin key of this server. It stays in this tab, and is sent in the header Authorization.");
});

byId("open-button").addEventListener("click", () => byId("open-file").click());
byId("open-file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  target.value = "";
  if (!file) return;
  try {
    openRecording(readRecording(await file.text()), showSnapshot);
  } catch {
    showVerdict("bad", `${file.name} is no recording of scripts/simulate.py --page.`);
  }
});

const recorded = byId("recorded");
if (recorded) openRecording(JSON.parse(recorded.textContent), showSnapshot, false);
else {
  // What the server says waits while a recording is open.
  follow((snapshot) => isRecorded() || showSnapshot(snapshot), (text) => isRecorded() || showProblem(text));
}
