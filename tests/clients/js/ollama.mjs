// SPDX-License-Identifier: Apache-2.0
import { Ollama } from "ollama";
import { z } from "zod";

import { baseURL, cities, endless, limit, model, moods, question, refused, run, tokens } from "./session.mjs";

const fetchInTime = (url, options) => fetch(url, { ...options, signal: options?.signal ?? limit });
const client = new Ollama({ host: baseURL.replace(/\/v1$/, ""), fetch: fetchInTime });
const messages = [{ role: "user", content: question }];
const options = { temperature: 0, num_predict: tokens };
const create = (more, stated) => client.chat({ model, messages, ...more, options: { ...options, ...stated } });
const person = z.object({ mood: z.enum(moods), age: z.number().int().min(0).max(120) });
const parameters = {
  type: "object", properties: { city: { type: "string", enum: cities } }, required: ["city"], additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_time", description: "The time in a city", parameters } }];
const shown = (answer) => ({
  text: answer.message.content, finish: answer.done_reason, prompt: answer.prompt_eval_count,
  completion: answer.eval_count,
});

await run({
  async chat() {
    return shown(await create({}));
  },
  async stream() {
    let facts = {}, text = "", pieces = 0;
    for await (const part of await create({ stream: true })) {
      text += part.message.content;
      pieces += part.message.content ? 1 : 0;
      facts = shown(part);
    }
    return { ...facts, text, pieces };
  },
  async tools() {
    const choice = { type: "function", function: { name: "get_time" } };
    const { message } = await create({ tools }, { tool_choice: choice, num_predict: 100 });
    const [call] = message.tool_calls;
    const result = { role: "tool", tool_name: call.function.name, content: "It is noon." };
    const second = await create({ tools, messages: [...messages, message, result] });
    return { name: call.function.name, arguments: call.function.arguments, answer: second.message.content };
  },
  async structured() {
    const answer = await create({ format: z.toJSONSchema(person) }, { num_predict: 100 });
    return { value: person.parse(JSON.parse(answer.message.content)) };
  },
  async errors() {
    return {
      model: await refused(() => create({ model: "nobody" })),
      context: await refused(() => create({ messages: [{ role: "user", content: endless }] })),
      value: await refused(() => create({}, { temperature: 9 })),
    };
  },
  async cancel() {
    const stream = await create({ stream: true }, { num_predict: 1900 });
    for await (const part of stream) {
      if (part.message.content) break;
    }
    stream.abort();
    return { ended: true };
  },
});
