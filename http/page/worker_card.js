// SPDX-License-Identifier: Apache-2.0
// One worker: its state, its figures, why it restarted, and the buttons that change it.

import { act } from "./actions.js";
import { keep, make, mark, say, show } from "./dom.js";
import { count, duration, NONE, rate, seconds, share, words } from "./format.js";
import { spark } from "./spark.js";
import { tone } from "./state.js";

const ACTIONS = [["drain", "Drain"], ["undrain", "Undrain"], ["role", "Role…"], ["restart", "Restart"]];
const GENERATING = ["prefill", "decode", "mixed"];

export function createCard(row) {
  const card = make("article", { class: "card", "data-name": row.name });
  const title = make("h3", { text: row.name });
  const state = make("span", { class: "pill" });
  const role = make("span", { class: "role" });
  const place = make("p", { class: "place" });
  const fill = make("span", { class: "fill" });
  const kv = make("span", { class: "value" });
  const gaugeName = make("span", { class: "name", text: "KV in use" });
  const gauge = make("div", { class: "gauge" }, gaugeName, make("span", { class: "bar" }, fill), kv);
  const figures = make("dl", { class: "figures" });
  const line = spark();
  const ranks = make("ul", { class: "ranks", "aria-label": `Ranks of ${row.name}` });
  const reason = make("p", { class: "reason" });
  const lines = make("pre", { tabindex: "0" });
  const last = make("details", { class: "last" }, make("summary", { text: "Its last lines" }), lines);
  const buttons = make("div", { class: "buttons", role: "group", "aria-label": `Change ${row.name}` });
  const note = make("p", { class: "note" });
  const made = {};
  for (const [action, label] of ACTIONS) {
    made[action] = make("button", { type: "button", class: "quiet", "data-action": action, text: label });
    made[action].setAttribute("aria-label", `${label.replace("…", "")} ${row.name}`);
    made[action].addEventListener("click", () => act(action, card.row));
    buttons.append(made[action]);
  }
  const header = make("header", {}, title, role, state);
  card.append(header, place, gauge, line.element, figures, ranks, reason, last, buttons, note);
  card.parts = { state, role, place, gauge, fill, kv, figures, line, ranks, reason, last, lines, buttons: made, note };
  return card;
}

export function updateCard(card, row, supervised) {
  const { parts } = card;
  const told = row.figures;
  card.row = row;
  mark(card, "data-tone", tone(row.state));
  mark(card, "data-role", row.role);
  say(parts.state, words(row.state));
  const plain = row.name.split(":")[0].split("-").at(-1);
  say(parts.role, plain === row.role ? "" : `works as ${row.role}`);
  say(parts.place, placeOf(row));
  show(parts.gauge, typeof told?.kv_used === "number");
  if (typeof told?.kv_used === "number") {
    parts.fill.style.width = `${Math.max(0, Math.min(1, told.kv_used)) * 100}%`;
    mark(parts.gauge, "data-full", told.kv_used > 0.9 ? "yes" : null);
    say(parts.kv, share(told.kv_used));
  }
  parts.line.add(speed(row) ?? 0);
  parts.line.element.toggleAttribute("hidden", !told);
  const update = (element, one) => say(element.lastElementChild, one.value);
  keep(parts.figures, figures(row), (one) => one.name, createFigure, update);
  showRanks(parts.ranks, row.ranks ?? []);
  showDeath(parts, row);
  showButtons(parts, row, supervised);
}

function createFigure(one) {
  return make("div", { title: one.says }, make("dt", { text: one.name }), make("dd"));
}

function speed(row) {
  if (!row.figures) return null;
  return row.role === "prefill" ? row.figures.prompt_tokens_per_second : row.figures.tokens_per_second;
}

function figures(row) {
  const told = row.figures;
  const restarts = { name: "Restarts", value: count(row.restarts), says: "Times that its process was started again" };
  if (!told) return row.restarts === undefined ? [] : [restarts];
  const figure = (name, value, says) => ({ name, value, says });
  const shown = [
    figure("Running", count(told.running), "Sequences that are computed now"),
    figure("Waiting", count(told.waiting), "Sequences that wait in the worker"),
  ];
  if (row.role !== "decode") {
    shown.push(figure("Prompt tok/s", rate(told.prompt_tokens_per_second), "Prompt tokens computed a second"));
  }
  if (row.role !== "prefill") {
    shown.push(figure("Tokens/s", rate(told.tokens_per_second), "Tokens generated a second"));
  }
  const step = told.step_seconds ? seconds(told.step_seconds) : NONE;
  shown.push(
    figure("Step", step, "Mean time of a step of the engine"),
    figure("Prefix hits", share(told.prefix_hits), "Part of the prompt tokens that were found in the cache"),
    restarts,
  );
  return shown;
}

function placeOf(row) {
  const hasCores = row.cores !== undefined && row.device === "cpu" && !row.ranks;
  const cores = hasCores ? ` · core${/[-,]/.test(row.cores) ? "s" : ""} ${row.cores}` : "";
  const node = row.node ? `${row.node} · ` : "";
  const pid = row.pid ? ` · pid ${row.pid}` : "";
  const up = row.uptime_seconds === undefined ? "" : ` · up ${duration(row.uptime_seconds)}`;
  return `${node}${row.device}${cores}${pid}${up}`;
}

function showRanks(list, ranks) {
  show(list, ranks.length > 0);
  keep(list, ranks, (one) => one.rank, () => make("li"), (element, one) => {
    mark(element, "data-tone", tone(one.state));
    const cores = one.cores === undefined || one.device !== "cpu" ? "" : `:${one.cores}`;
    say(element, `rank ${one.rank} · ${one.device}${cores}${one.state === "READY" ? "" : ` · ${words(one.state)}`}`);
  });
}

function showDeath(parts, row) {
  const death = row.last_death;
  const subject = ["STARTING", "REFUSED"].includes(row.state) ? "" : "It ";
  const why = row.state !== "READY" && row.reason ? `${subject}${row.reason}` : "";
  const wait = row.starts_in_seconds === undefined ? "" : `; starts again in ${duration(row.starts_in_seconds)}`;
  const told = death ? `${duration(death.seconds_ago)} ago it ${death.reason}` : "";
  say(parts.reason, why ? `${why}${wait}` : told);
  show(parts.reason, Boolean(why || told));
  show(parts.last, Boolean(death?.lines?.length));
  if (death?.lines?.length) say(parts.lines, death.lines.join("\n"));
}

function showButtons(parts, row, supervised) {
  const able = supervised && row.managed;
  const rests = row.state.startsWith("DRAIN");
  const { drain, undrain, role, restart } = parts.buttons;
  show(drain, !rests);
  show(undrain, rests);
  show(role, GENERATING.includes(row.role));
  for (const button of [drain, undrain, role, restart]) button.disabled = !able || row.state === "REFUSED";
  drain.disabled ||= row.state !== "READY";
  const command = `pontil drain ${row.name}`;
  let note = "";
  if (!supervised) note = `No launcher runs beside this proxy. Where it runs: ${command}`;
  else if (!row.managed && row.state !== "REFUSED") note = `Joined from another launch. There: ${command}`;
  say(parts.note, note);
  show(parts.note, Boolean(note));
}
