// SPDX-License-Identifier: Apache-2.0
// The processes and what flows between them: cards in columns by role, wires drawn between the cards.

import { byId, keep, make, mark, say, svg } from "./dom.js";
import { move } from "./flow.js";
import { bytes, duration, plural, words } from "./format.js";
import { tone } from "./state.js";
import { createCard, updateCard } from "./worker_card.js";

const ORDER = ["prefill", "mixed", "decode", "node", "embed", "rerank"];
// Pairs of workers that are joined by a wire before anything has moved between them.
const FEW_PAIRS = 9;
// Pixels from a card's top to the bar of its KV, where a wire ends.
const BAR = 74;

const stage = byId("stage");
const columns = byId("columns");
const wires = byId("wires");
let shown = null;

export function showMap(snapshot) {
  shown = snapshot;
  const proxies = snapshot.processes.filter((row) => row.role === "proxy");
  const workers = snapshot.processes.filter((row) => row.role !== "proxy");
  const places = columnsOf(workers);
  keep(columns, [{ key: "proxies", rows: proxies }, ...places], (one) => one.key, createColumn, (element, one) => {
    const isProxies = one.key === "proxies";
    keep(element.lastElementChild, one.rows, (row) => row.name, isProxies ? createProxy : createCard, (card, row) => {
      if (isProxies) updateProxy(card, row, snapshot, proxies.length);
      else updateCard(card, row, snapshot.proxy.supervised);
    });
  });
  showFlows(snapshot);
  drawWires();
}

function columnsOf(workers) {
  const found = new Map();
  for (const row of workers) {
    const key = row.node ? `${row.node} ${row.role}` : row.role;
    if (!found.has(key)) found.set(key, { key, role: row.role, node: row.node ?? "", rows: [] });
    found.get(key).rows.push(row);
  }
  const rank = (one) => ORDER.indexOf(one.role);
  return [...found.values()].sort((a, b) => a.node.localeCompare(b.node) || rank(a) - rank(b));
}

function createColumn(one) {
  if (one.key === "proxies") return make("div", { class: "column proxies" }, make("div", { class: "cards" }));
  const name = one.node ? `${one.node}${one.role === "node" ? "" : ` · ${one.role}`}` : one.role;
  const heading = make("p", { class: "column-name", text: name });
  return make("div", { class: "column", "data-role": one.role }, heading, make("div", { class: "cards" }));
}

function createProxy(row) {
  const card = make("article", { class: "card proxy", "data-name": row.name });
  const parts = {
    state: make("span", { class: "pill" }),
    place: make("p", { class: "place" }),
    load: make("p", { class: "load" }),
  };
  card.append(make("header", {}, make("h3", { text: row.name }), parts.state), parts.place, parts.load);
  card.parts = parts;
  return card;
}

function updateProxy(card, row, snapshot, proxies) {
  const { totals, proxy } = snapshot;
  mark(card, "data-tone", tone(row.state));
  say(card.parts.state, words(row.state));
  const seen = proxies > 1 || proxy.proxies > 1 ? (row.name === proxy.name ? " · this page's" : "") : "";
  const cpu = typeof row.cpu_percent === "number" ? ` · ${Math.round(row.cpu_percent)} % of a core` : "";
  const death = row.last_death ? ` · ${duration(row.last_death.seconds_ago)} ago it ${row.last_death.reason}` : "";
  say(card.parts.place, `pid ${row.pid ?? "–"}${cpu}${seen}${death}`);
  const own = row.name === proxy.name || proxies === 1;
  const load = `${plural(totals.running, "answer streams", "answers stream")}, ${totals.waiting} wait`;
  say(card.parts.load, own ? `${load}${needed(snapshot.load)}` : "");
}

// The workers that the load needs, and how wrong predicted times are. A recording of an earlier version has neither.
function needed(load) {
  const wanted = Object.entries(load?.wanted ?? {}).map(([role, number]) => `${number} ${role}`);
  const errors = Object.entries(load?.planner_errors ?? {});
  const wrong = errors.map(([time, error]) => `${time.replace("_", " ")} ${Math.round(100 * error)} %`);
  const needs = wanted.length ? ` · needs ${wanted.join(", ")}` : "";
  return wrong.length ? `${needs} · predictions wrong by ${wrong.join(", ")}` : needs;
}

// The flows in words, for those who see no wires.
function showFlows(snapshot) {
  const busy = snapshot.flows.filter(isBusy);
  keep(byId("flows-spoken"), busy, (one) => `${one.from}>${one.to}`, () => make("li"), (element, one) => {
    const open = plural(one.open, "handoff", "handoffs");
    say(element, `${one.from} to ${one.to}: ${open} open, ${bytes(one.bytes_per_second)} a second`);
  });
}

function isBusy(flow) {
  return flow.open > 0 || flow.bytes_per_second > 0;
}

function wantedWires() {
  const wanted = new Map();
  const rows = shown.processes.filter((row) => row.figures && !row.node);
  const givers = rows.filter((row) => row.role === "prefill");
  const takers = rows.filter((row) => row.role === "decode");
  if (givers.length * takers.length <= FEW_PAIRS) {
    for (const { name: from } of givers) {
      for (const { name: to } of takers) wanted.set(`${from}>${to}`, { from, to, open: 0, bytes_per_second: 0 });
    }
  }
  for (const flow of shown.flows) wanted.set(`${flow.from}>${flow.to}`, flow);
  return [...wanted.entries()].map(([key, flow]) => ({ key, flow, kind: "kv" }));
}

function proxyWires() {
  const first = columns.querySelector(".proxy");
  if (!first) return [];
  const places = [...columns.querySelectorAll(".column:not(.proxies)")];
  const every = places.filter((column) => column.querySelector(".card"));
  // Wires to columns further down would run behind the cards above them.
  const highest = Math.min(...every.map((column) => column.offsetTop));
  const heads = every.filter((column) => column.offsetTop === highest).map((column) => column.querySelector(".card"));
  return heads.map((card) => ({ key: `proxy ${card.dataset.name}`, kind: "control", from: first, to: card }));
}

function drawWires() {
  if (!shown) return;
  const box = stage.getBoundingClientRect();
  mark(wires, "viewBox", `0 0 ${Math.round(box.width)} ${Math.round(box.height)}`);
  const cards = new Map([...columns.querySelectorAll(".card")].map((card) => [card.dataset.name, card]));
  const pairs = wantedWires().map((one) => ({ ...one, from: cards.get(one.flow.from), to: cards.get(one.flow.to) }));
  const drawable = [...proxyWires(), ...pairs].filter((one) => one.from && one.to);
  const labelled = drawable.filter((one) => one.kind === "kv" && isBusy(one.flow)).length <= 3;
  keep(wires, drawable, (one) => one.key, createWire, (group, one) => updateWire(group, one, box, labelled));
  move(wires, drawable.some((one) => one.kind === "kv" && isBusy(one.flow)));
}

function createWire(one) {
  const line = svg("path", { class: "wire" });
  const moving = svg("path", { class: "moving" });
  const label = svg("text", { class: "wire-label", "text-anchor": "middle" });
  return svg("g", { class: `link ${one.kind}` }, line, moving, label);
}

function updateWire(group, one, box, labelled) {
  const [line, moving, label] = group.children;
  const [from, to] = [one.from, one.to].map((card) => card.getBoundingClientRect());
  const { path, middle } = route(from, to, box, one.kind === "kv");
  mark(line, "d", path);
  mark(moving, "d", path);
  const busy = one.kind === "kv" && isBusy(one.flow);
  mark(group, "data-busy", busy ? "yes" : null);
  say(label, busy && labelled ? `${bytes(one.flow.bytes_per_second)}/s` : "");
  mark(label, "x", middle.x);
  mark(label, "y", middle.y);
}

// The path of a wire between two cards: sideways where one stands beside the other, else down.
function route(from, to, box, sideways) {
  if (sideways && to.left - from.right > 8) {
    const [x1, y1] = [from.right - box.left, from.top + BAR - box.top];
    const [x2, y2] = [to.left - box.left, to.top + BAR - box.top];
    const bend = Math.max(24, (x2 - x1) / 2);
    return {
      path: curve(x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2),
      middle: { x: r((x1 + x2) / 2), y: r((y1 + y2) / 2 - 10) },
    };
  }
  const middleOf = (card) => (card.left + card.right) / 2;
  const overlap = Math.min(from.right, to.right) > Math.max(from.left, to.left) + 40;
  const start = overlap ? Math.max(from.left + 20, Math.min(from.right - 20, middleOf(to))) : middleOf(from);
  const [x1, x2] = [start - box.left, middleOf(to) - box.left];
  const isUnder = to.top >= from.bottom;
  const [y1, y2] = (isUnder ? [from.bottom, to.top] : [from.top, to.bottom]).map((y) => y - box.top);
  const bend = (y2 - y1) / 2;
  return {
    path: curve(x1, y1, x1, y1 + bend, x2, y2 - bend, x2, y2),
    middle: { x: r((x1 + x2) / 2 + 40), y: r((y1 + y2) / 2 + 4) },
  };
}

function curve(...points) {
  const [x1, y1, ax, ay, bx, by, x2, y2] = points.map(r);
  return `M${x1} ${y1} C${ax} ${ay} ${bx} ${by} ${x2} ${y2}`;
}

function r(value) {
  return Math.round(value * 10) / 10;
}

new ResizeObserver(drawWires).observe(stage);
