// SPDX-License-Identifier: Apache-2.0
// A coding agent with one of the clients, as python/agent_session.py is one: it prints a line of JSON when it asks, when
// an answer begins, and when it has come.
//
//     agent.mjs URL MODEL KEY CLIENT TASK PYTHON TOOLS
//
// TOOLS is python/agent_tools.py: an agent of either language has the same tools.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

import { clients } from "./agent_clients.mjs";

const [url, model, key, name, task, python, tools] = process.argv.slice(2);
const timeout = 120_000;
const say = (event, facts) => process.stdout.write(`${JSON.stringify({ event, ...facts })}\n`);

function carryOut(call) {
  const { status, stdout, stderr } = spawnSync(python, [tools, call.name, call.arguments], { encoding: "utf8", timeout });
  if (status !== 0) throw new Error(stderr);
  return stdout;
}

const { steps, ...rest } = JSON.parse(readFileSync(task, "utf8"));
const client = clients[name](url, model, key, rest);
for (const tool of steps) {
  say("asks", { tool });
  let begun = false;
  const { calls, ...facts } = await client.ask(tool, () => {
    if (!begun) say("begins");
    begun = true;
  });
  say("told", { ...facts, calls: calls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) })) });
  client.answer(calls.map((call) => [call, carryOut(call)]));
}
