// SPDX-License-Identifier: Apache-2.0
// The last requests as rows; one that is chosen shows where its time went.

import { byId, keep, make, mark, say, show } from "./dom.js";
import { capital, sentence } from "./feed.js";
import { clock, count, seconds } from "./format.js";
import { headers } from "./keys.js";
import { isRecorded, recordedTimeline } from "./recording.js";
import { drawWaterfall } from "./waterfall.js";

const TONES = { complete: "good", open: "wait", failed: "bad", cancelled: "rest" };
const detail = byId("request-detail");
let chosen = null;
// The waterfall of a request that goes on is drawn again with each snapshot, and once more when it has ended.
let goesOn = false;

export function showRequests(rows) {
  show(byId("no-requests"), rows.length === 0);
  show(byId("requests"), rows.length > 0);
  keep(byId("request-rows"), rows, (row) => row.id, createRow, updateRow);
  if (chosen && goesOn) redraw(chosen);
}

function createRow(row) {
  const button = make("button", { type: "button", class: "link-like", text: clock(row.received_at), title: row.id });
  button.setAttribute("aria-label", `Where the time of request ${row.id} went`);
  button.addEventListener("click", () => choose(row.id));
  const state = make("td", {}, make("span", { class: "pill" }));
  const numbers = Array.from({ length: 5 }, () => make("td", { class: "number" }));
  const head = make("th", { scope: "row" }, button);
  const element = make("tr", {}, head, state, make("td", { class: "route" }), ...numbers);
  element.addEventListener("click", (event) => {
    if (event.target !== button) choose(row.id);
  });
  return element;
}

function updateRow(element, row) {
  const [, state, route, prompt, cached, answer, first, whole] = element.children;
  const pill = state.firstElementChild;
  mark(pill, "data-tone", TONES[row.state] ?? "rest");
  say(pill, row.state === "complete" ? row.finish || "complete" : row.state);
  const stage = row.stage ? `${row.stage}: ` : "";
  const attempt = row.attempts > 1 ? ` (attempt ${row.attempts})` : "";
  say(route, `${stage}${row.workers.join(" › ") || "in the queue"}${attempt}`);
  mark(route, "title", `${row.route} ${row.model}, ${row.caller}`);
  say(prompt, count(row.prompt_tokens));
  say(cached, count(row.cached_tokens));
  say(answer, count(row.completion_tokens));
  say(first, seconds(row.first_token_seconds));
  say(whole, seconds(row.seconds));
  mark(element, "data-chosen", row.id === chosen ? "yes" : null);
}

// Return where the time of one request went, or null with what the server says instead.
export async function fetchTimeline(id) {
  if (isRecorded()) return { timeline: recordedTimeline(id), says: "It was not recorded." };
  const place = new URL(`requests/${encodeURIComponent(id)}`, document.baseURI);
  const response = await fetch(place, { headers: headers("admin"), cache: "no-store" });
  if (!response.ok) return { timeline: null, says: capital(await sentence(response)) };
  const told = await response.json();
  return { timeline: told.requests ? told.requests[0] : told, says: "" };
}

function choose(id) {
  chosen = id;
  for (const row of byId("request-rows").children) mark(row, "data-chosen", null);
  const heading = make("h3", { text: "Where the time went", tabindex: "-1" });
  const close = make("button", { type: "button", class: "quiet", text: "Close" });
  close.addEventListener("click", () => {
    chosen = null;
    show(detail, false);
    byId("requests-heading").focus();
  });
  const head = make("div", { class: "row" }, heading, close);
  detail.replaceChildren(head, make("p", { class: "place", text: id }), make("div"));
  show(detail, true);
  heading.focus();
  redraw(id);
}

async function redraw(id) {
  goesOn = false;
  let says = "The proxy did not answer.";
  try {
    const found = await fetchTimeline(id);
    says = found.says;
    if (id !== chosen) return;
    if (found.timeline) {
      drawWaterfall(detail.lastElementChild, found.timeline);
      goesOn = found.timeline.state === "open";
      return;
    }
  } catch {
    if (id !== chosen) return;
  }
  detail.lastElementChild.replaceChildren(make("p", { class: "problem", text: says }));
}
