// SPDX-License-Identifier: Apache-2.0
// Where the time of one request went: a lane for each part of the work at each process, over one axis of time.

import { make, svg } from "./dom.js";
import { bytes, count, seconds } from "./format.js";

const KINDS = {
  receive: "own", tokenize: "own", queue: "wait", attempt: "whole", write: "own", compute: "compute", pull: "move",
  handoff: "move", decode: "decode",
};
const SAYS = {
  receive: "body received", tokenize: "text to tokens", queue: "in a queue", attempt: "attempt",
  write: "answer written", compute: "prompt computed", pull: "KV pulled", handoff: "handoff",
  decode: "tokens generated",
};
// The same in short, for the names of lanes.
const LANES = {
  receive: "body", tokenize: "tokenizer", queue: "queue", attempt: "attempt", write: "answer", compute: "prompt",
  pull: "KV pull", handoff: "handoff", decode: "tokens",
};
const EVENTS = {
  begin: "scheduled", first_token: "first token", preempted: "preempted", failover: "failover", finished: "finished",
};

export function drawWaterfall(container, timeline) {
  const spans = (timeline.spans ?? []).filter((one) => Number.isFinite(one.begin));
  const events = timeline.events ?? [];
  const end = Math.max(timeline.seconds ?? 0, ...spans.map((one) => one.end ?? one.begin), 1e-6);
  const drawn = make("div", { class: "waterfall", role: "img", "aria-label": summary(timeline, end) });
  drawn.append(axis(end));
  for (const lane of lanesOf(spans)) drawn.append(laneOf(lane, end, timeline.gaps));
  const first = timeline.first_token_seconds;
  if (Number.isFinite(first) && first !== null) drawn.append(firstToken(first, end));
  const moments = events.filter((one) => one.name === "failover" || one.name === "preempted");
  const notes = moments.map((one) => {
    const reason = one.reason ? `, ${one.reason}` : "";
    return make("li", { text: `${seconds(one.at)}: ${one.process} ${EVENTS[one.name]}${reason}` });
  });
  container.replaceChildren(make("p", { class: "largest", text: summary(timeline, end) }), drawn, legend(spans));
  if (notes.length) container.append(make("ul", { class: "moments" }, ...notes));
  container.append(tableOf(spans, events, end));
}

function summary(timeline, end) {
  const { largest } = timeline;
  if (!largest) return `${seconds(end)} in all.`;
  const [name, process] = largest.name.split(" of ");
  return `${seconds(largest.seconds)} of ${seconds(end)}: ${SAYS[name] ?? name}${process ? ` by ${process}` : ""}.`;
}

// The lanes in the order in which they begin, those of one process and one kind of work in one, later attempts apart.
function lanesOf(spans) {
  const lanes = new Map();
  for (const span of [...spans].sort((a, b) => a.begin - b.begin)) {
    const { process, name, attempt = 0, choice = 0 } = span;
    const key = `${process} ${name} ${attempt} ${name === "decode" ? choice : ""}`;
    if (!lanes.has(key)) lanes.set(key, { process, name, attempt: attempt ?? 0, spans: [] });
    lanes.get(key).spans.push(span);
  }
  return [...lanes.values()];
}

function laneOf(lane, end, gaps) {
  const track = make("div", { class: "track" });
  for (const span of lane.spans) {
    const bar = make("span", { class: `span ${KINDS[span.name] ?? "own"}`, title: describe(span, end) });
    if (span.end === null || span.end === undefined) bar.classList.add("open");
    place(bar, span.begin, (span.end ?? end) - span.begin, end);
    track.append(bar);
  }
  if (lane.name === "decode" && gaps?.seconds?.length) track.append(ticks(gaps, end));
  const attempt = lane.attempt ? ` · attempt ${lane.attempt + 1}` : "";
  const process = make("span", { class: "process", text: lane.process });
  const name = make("span", { text: ` ${LANES[lane.name] ?? lane.name}${attempt}` });
  return make("div", { class: "lane" }, make("div", { class: "label" }, process, name), track);
}

function place(element, begin, length, end) {
  element.style.left = `${(Math.max(0, begin) / end) * 100}%`;
  element.style.width = `${(Math.max(0, length) / end) * 100}%`;
}

// A tick for each token: an interval that is longer than the others is a stall.
function ticks(gaps, end) {
  const marks = [];
  let at = gaps.begin ?? 0;
  for (const gap of gaps.seconds) {
    at += gap;
    marks.push(`M${((at / end) * 1000).toFixed(1)} 0V10`);
  }
  const options = { class: "ticks", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" };
  return svg("svg", options, svg("path", { d: marks.join("") }));
}

function axis(end) {
  const step = niceStep(end / 4);
  const track = make("div", { class: "track" });
  for (let at = 0; at <= end * 0.9; at += step) {
    const tick = make("span", { class: "tick", text: at === 0 ? "0" : seconds(at) });
    tick.style.left = `${(at / end) * 100}%`;
    track.append(tick);
  }
  return make("div", { class: "lane axis", "aria-hidden": "true" }, make("div", { class: "label" }), track);
}

function niceStep(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= wanted) ?? wanted;
}

function firstToken(at, end) {
  const line = make("span", { class: "first-token", title: `first token after ${seconds(at)}` });
  line.style.left = `${(Math.min(at, end) / end) * 100}%`;
  const track = make("div", { class: "track" }, line);
  return make("div", { class: "lane over", "aria-hidden": "true" }, make("div", { class: "label" }), track);
}

function legend(spans) {
  const there = new Set(spans.map((one) => KINDS[one.name]));
  const names = [["wait", "waiting"], ["compute", "prompt"], ["move", "KV moves"], ["decode", "tokens"]];
  const item = (kind, text) => make("li", {}, make("span", { class: kind }), make("span", { text }));
  const items = names.filter(([kind]) => there.has(kind)).map(([kind, name]) => item(`span ${kind}`, name));
  items.push(item("first-token", "first token"));
  return make("ul", { class: "legend", "aria-hidden": "true" }, ...items);
}

function amounts(span) {
  const told = [];
  if (span.tokens !== undefined && span.tokens !== null) told.push(`${count(span.tokens)} tokens`);
  if (span.blocks !== undefined && span.blocks !== null) told.push(`${count(span.blocks)} blocks`);
  if (span.bytes !== undefined && span.bytes !== null) told.push(bytes(span.bytes));
  return told.join(", ");
}

function describe(span, end) {
  const more = amounts(span);
  const took = seconds((span.end ?? end) - span.begin);
  const when = `${took} from ${seconds(span.begin)}`;
  return [`${span.process}: ${SAYS[span.name] ?? span.name}`, when, more].filter(Boolean).join(", ");
}

function tableOf(spans, events, end) {
  const cells = (tag, texts, options = {}) => make("tr", {}, ...texts.map((text) => make(tag, { text, ...options })));
  const rows = [
    ...spans.map((one) => {
      const took = one.end === null ? "goes on" : seconds((one.end ?? end) - one.begin);
      return [one.begin, took, one.process, SAYS[one.name] ?? one.name, amounts(one)];
    }),
    ...events.map((one) => [one.at, "", one.process, EVENTS[one.name] ?? one.name, one.reason ?? ""]),
  ].sort((a, b) => a[0] - b[0]);
  const head = make("thead", {}, cells("th", ["Begins", "Takes", "Process", "Part", ""], { scope: "col" }));
  const body = make("tbody", {}, ...rows.map(([at, ...texts]) => cells("td", [seconds(at), ...texts])));
  const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parts of the request" };
  const table = make("div", region, make("table", {}, head, body));
  return make("details", { class: "as-table" }, make("summary", { text: "As a table" }), table);
}
