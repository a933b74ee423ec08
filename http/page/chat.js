// SPDX-License-Identifier: Apache-2.0
// A box to try the server with: the answer as it comes, who served it, and where its time went.

import { byId, keep, make, say, show } from "./dom.js";
import { capital, sentence } from "./feed.js";
import { count, rate, seconds } from "./format.js";
import { askKey, headers } from "./keys.js";
import { fetchTimeline } from "./requests.js";
import { drawWaterfall } from "./waterfall.js";

const CHAT = new URL("../v1/chat/completions", document.baseURI);
// The request's record is complete a moment after its last word: workers report their times after their last tokens.
const LOOKS = [0, 0.15, 0.4, 1];

let model = "";
let running = null;

export function nameModel(name) {
  model = name;
}

byId("chat-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else ask(byId("chat-text").value.trim());
});
byId("chat-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("chat-form").requestSubmit();
  }
});

async function ask(text) {
  if (!text || running) return;
  const aborter = (running = new AbortController());
  say(byId("chat-send"), "Stop");
  begin();
  try {
    await exchange(text, aborter.signal, true);
  } catch (error) {
    if (error.name === "AbortError") problem("Stopped.");
    else problem(error instanceof Refusal ? error.message : "The proxy did not answer: see above whether it runs.");
  } finally {
    running = null;
    say(byId("chat-send"), "Send");
  }
}

class Refusal extends Error {}

function begin() {
  show(byId("chat-answer"), true);
  say(byId("chat-reply"), "");
  problem("");
  byId("chat-waterfall").replaceChildren();
  showFacts([]);
}

function problem(text) {
  say(byId("chat-problem"), text);
  show(byId("chat-problem"), Boolean(text));
}

async function exchange(text, signal, mayAsk) {
  const began = performance.now();
  const tokens = Math.max(1, Math.min(4096, Number(byId("chat-tokens").value) || 128));
  const response = await fetch(CHAT, {
    method: "POST",
    headers: { ...headers("chat"), "content-type": "application/json" },
    body: JSON.stringify({
      model,
      messages: [{ role: "user", content: text }],
      max_tokens: tokens,
      stream: true,
      stream_options: { include_usage: true },
    }),
    signal,
  });
  if (response.status === 401 && mayAsk) {
    const given = await askKey("chat", "Answers need a client's key, or the admin key. It stays in this tab.");
    if (given) return exchange(text, signal, false);
  }
  if (!response.ok) throw new Refusal(capital(await sentence(response)));
  const told = { route: response.headers.get("x-pontil-route"), id: response.headers.get("x-request-id"), began };
  await readAnswer(response, told);
  showFacts(factsOf(told));
  await showTimeline(told.id);
}

async function readAnswer(response, told) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") take(JSON.parse(part.slice(6)), told);
    }
  }
}

function take(chunk, told) {
  if (chunk.error) throw new Refusal(capital(String(chunk.error.message)));
  const delta = chunk.choices?.[0]?.delta ?? {};
  const piece = (delta.reasoning_content ?? "") + (delta.content ?? "");
  if (piece) {
    const now = performance.now();
    told.first ??= now;
    told.last = now;
    byId("chat-reply").append(piece);
  }
  told.usage = chunk.usage ?? told.usage;
}

function factsOf({ route, usage, began, first, last }) {
  const made = usage?.completion_tokens ?? 0;
  const took = first === undefined ? 0 : (last - first) / 1000;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  return [
    ["Served by", route ?? "–"],
    ["Prompt", `${count(usage?.prompt_tokens)} tokens, ${count(cached)} cached`],
    ["Answer", `${count(made)} tokens${took > 0 && made > 1 ? `, ${rate((made - 1) / took)} a second` : ""}`],
    ["First token", first === undefined ? "–" : seconds((first - began) / 1000)],
  ].map(([name, value]) => ({ name, value }));
}

function showFacts(facts) {
  const create = (one) => make("div", {}, make("dt", { text: one.name }), make("dd"));
  const update = (element, one) => say(element.lastElementChild, one.value);
  keep(byId("chat-facts"), facts, (one) => one.name, create, update);
}

async function showTimeline(id) {
  if (!id) return;
  for (const pause of LOOKS) {
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
    const { timeline } = await fetchTimeline(id);
    if (!timeline || timeline.state === "open") continue;
    drawWaterfall(byId("chat-waterfall"), timeline);
    const reported = new Set(timeline.spans.map((span) => span.process));
    if (timeline.workers.every((worker) => reported.has(worker))) return;
  }
}
