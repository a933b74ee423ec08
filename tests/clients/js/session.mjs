// SPDX-License-Identifier: Apache-2.0
// What the sessions of all JavaScript clients ask, and a runner that prints the facts of each step as one JSON object.

import { setMaxListeners } from "node:events";

export const [baseURL, model] = process.argv.slice(2);
export const question = "What time is it in Rome?";
export const tokens = 24;
// Nothing of a session waits longer. All calls listen to it, which node takes for a leak.
setMaxListeners(0);
export const limit = AbortSignal.timeout(60_000);
// More than the context of any model of the tests, with its fewest tokens for a letter.
export const endless = "lighthouse ".repeat(20_000);
export const cities = ["Paris", "Rome"];
export const moods = ["good", "bad"];

export async function run(steps) {
  const facts = {};
  for (const [name, step] of Object.entries(steps)) {
    try {
      facts[name] = await step();
    } catch (error) {
      facts[name] = { failed: `${error?.name}: ${error?.message}`.slice(0, 600) };
    }
  }
  process.stdout.write(JSON.stringify(facts));
}

export async function refused(call) {
  try {
    await call();
  } catch (error) {
    const told = error?.lastError ?? error;
    return {
      status: told.status ?? told.statusCode ?? told.status_code, says: `${told.message} ${told.responseBody ?? ""}`, kind: told.name,
    };
  }
  return { status: 200, says: "nothing", kind: null };
}
