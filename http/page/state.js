// SPDX-License-Identifier: Apache-2.0
// What the operator should know first: one sentence with a tone, a pure function of the snapshot.

import { duration, plural, words } from "./format.js";

const DEAD = ["EXITED", "KILLED", "BACKOFF", "STALE", "GIVEN_UP"];
const RESTING = ["DRAINING", "DRAINED", "ASLEEP"];
// Seconds for which a death is still news.
const NEWS = 120;

export function tone(state) {
  if (state === "READY") return "good";
  if (state === "STARTING") return "wait";
  if (RESTING.includes(state)) return "rest";
  return "bad";
}

export function workers(snapshot) {
  return snapshot.processes.filter((row) => row.role !== "proxy");
}

// Return {tone, text}.
export function verdict(snapshot) {
  const rows = workers(snapshot);
  const serving = rows.filter((row) => row.state === "READY").length;
  const part = serving === rows.length ? `All ${plural(rows.length, "worker serves", "workers serve")}.`
    : `${serving} of ${plural(rows.length, "worker serves", "workers serve")}.`;
  const all = rows.length === 1 && serving === 1 ? "The worker serves." : part;
  const { proxy } = snapshot;
  if (proxy.draining) return { tone: "rest", text: "The server is shutting down: it takes no new requests." };
  if (proxy.is_stale) {
    return { tone: "wait", text: `The launcher has been silent for ${duration(proxy.table_age)}: states may be old.` };
  }
  const down = rows.find((row) => DEAD.includes(row.state));
  if (down) return { tone: "bad", text: `${down.name} ${fate(down)}. ${part}` };
  const refused = rows.find((row) => row.state === "REFUSED");
  if (refused) {
    return { tone: "bad", text: `${refused.name} was refused: ${refused.reason ?? "it does not fit"}. ${part}` };
  }
  const starting = rows.find((row) => row.state === "STARTING");
  if (starting) {
    const what = `starts${starting.last_death ? " again" : ""}${starting.reason ? `: ${starting.reason}` : ""}`;
    // A pause before a restart may be shorter than the time between two snapshots: the death must show all the same.
    if (!isNews(starting)) return { tone: "wait", text: `${starting.name} ${what}. ${part}` };
    return { tone: "bad", text: `${starting.name} ${death(starting)}, and ${what}. ${part}` };
  }
  if (proxy.objection) return { tone: "bad", text: `Not ready: ${proxy.objection}.` };
  const resting = rows.filter((row) => RESTING.includes(row.state));
  if (resting.length) {
    const names = resting.map((row) => `${row.name} is ${words(row.state)}`).join(", ");
    return { tone: "rest", text: `${part} ${names}.` };
  }
  const died = rows.find(isNews);
  return { tone: "good", text: died ? `${all} ${died.name} ${death(died)}, and is back.` : all };
}

function isNews(row) {
  return row.last_death !== undefined && row.last_death.seconds_ago < NEWS;
}

function death({ last_death: { reason, seconds_ago: ago } }) {
  return `${reason} ${duration(ago)} ago`;
}

function fate(row) {
  const reason = row.reason ?? row.last_death?.reason;
  const again = row.starts_in_seconds === undefined ? "" : `; it starts again in ${duration(row.starts_in_seconds)}`;
  if (row.state === "GIVEN_UP") return `was given up${reason ? `: it ${reason}` : ""}`;
  return `is down${reason ? `: it ${reason}` : ""}${again}`;
}
