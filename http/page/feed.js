// SPDX-License-Identifier: Apache-2.0
// The snapshots of the server, one a second. They are read by fetch, since an EventSource cannot show a key.

import { askKey, headers, nextKey } from "./keys.js";

const EVENTS = new URL("events", document.baseURI);
// Seconds without a snapshot after which the connection is taken for dead.
const SILENCE = 6;
const PAUSES = [0.5, 1, 2, 4];

// The sentence of an error that the server answered with.
export async function sentence(response) {
  try {
    const told = await response.json();
    return String(told.error?.message ?? `status ${response.status}`);
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

// Call `onSnapshot` with each snapshot, and `onProblem` with why there is none. Never ends.
export async function follow(onSnapshot, onProblem) {
  for (let failures = 0; ; failures += 1) {
    try {
      await read((snapshot) => {
        failures = 0;
        onSnapshot(snapshot);
      }, onProblem);
    } catch (error) {
      onProblem(error instanceof Refusal ? error.message : null);
    }
    const pause = PAUSES[Math.min(failures, PAUSES.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
}

class Refusal extends Error {}

async function read(onSnapshot, onProblem) {
  const aborter = new AbortController();
  let silence = setTimeout(() => aborter.abort(), SILENCE * 1000);
  try {
    const response = await fetch(EVENTS, { headers: headers("admin"), signal: aborter.signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) {
      clearTimeout(silence);
      const reason = await sentence(response);
      onProblem(`A key is needed: ${reason}`);
      if (!(await askKey("admin", `${capital(reason)}. The key stays in this tab.`))) await nextKey();
      return;
    }
    if (!response.ok) throw new Refusal(capital(await sentence(response)));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => aborter.abort(), SILENCE * 1000);
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      const newest = parts.filter((part) => part.startsWith("data: ")).at(-1);
      if (newest) onSnapshot(JSON.parse(newest.slice(6)));
    }
  } finally {
    clearTimeout(silence);
  }
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
