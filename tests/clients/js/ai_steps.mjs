// SPDX-License-Identifier: Apache-2.0
// The steps of a session with the AI SDK, for a provider's models by name.
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { cities, endless, limit, moods, question, refused, tokens } from "./session.mjs";

export const asked = { prompt: question, maxOutputTokens: tokens, temperature: 0, maxRetries: 0, abortSignal: limit };
const person = z.object({ mood: z.enum(moods), age: z.number().int().min(0).max(120) });

export async function streamed(model, more = {}) {
  const facts = { text: "", pieces: 0 };
  const stream = streamText({ model, ...asked, ...more, onError: () => {} });
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") {
      facts.text += part.text;
      facts.pieces += 1;
    }
  }
  const usage = await stream.usage;
  return { ...facts, finish: await stream.finishReason, prompt: usage.inputTokens, completion: usage.outputTokens };
}

export function stepsOf(named) {
  return {
    async chat() {
      const { text, finishReason, usage } = await generateText({ model: named(), ...asked });
      return { text, finish: finishReason, prompt: usage.inputTokens, completion: usage.outputTokens };
    },
    stream: () => streamed(named()),
    async tools() {
      const facts = {};
      const get_time = tool({
        description: "The time in a city", inputSchema: z.object({ city: z.enum(cities) }),
        execute(given) {
          facts.arguments = given;
          return "It is noon.";
        },
      });
      const { text, steps } = await generateText({
        model: named(), ...asked, maxOutputTokens: 100, tools: { get_time }, stopWhen: stepCountIs(2),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : { type: "tool", toolName: "get_time" } }),
      });
      return { ...facts, name: steps[0].toolCalls[0].toolName, answer: text };
    },
    async structured() {
      const output = Output.object({ schema: person });
      return { value: (await generateText({ model: named(), ...asked, maxOutputTokens: 100, output })).output };
    },
    // Without a schema the provider asks for `json_object`. An object that was closed at its budget is read as well.
    async json_object() {
      const { text, finishReason } = await generateText({
        model: named(), ...asked, maxOutputTokens: 100, output: Output.json(),
      });
      const value = JSON.parse(text);
      return { is_object: typeof value === "object" && value !== null && !Array.isArray(value), finish: finishReason };
    },
    async errors() {
      return {
        model: await refused(() => generateText({ model: named("nobody"), ...asked })),
        context: await refused(() => generateText({ model: named(), ...asked, prompt: endless })),
        value: await refused(() => generateText({ model: named(), ...asked, temperature: 9 })),
      };
    },
    async cancel() {
      const controller = new AbortController();
      const stream = streamText({
        model: named(), ...asked, maxOutputTokens: 1900, abortSignal: controller.signal, onError: () => {},
      });
      let ended = false;
      for await (const part of stream.fullStream) {
        if (part.type === "text-delta") controller.abort();
        ended ||= part.type === "abort";
      }
      return { ended };
    },
  };
}

export function responsesOf(model) {
  return async () => {
    const whole = await generateText({ model, ...asked });
    const { text, pieces, completion } = await streamed(model);
    const id = whole.providerMetadata.openai.responseId;
    const more = { providerOptions: { openai: { previousResponseId: id } } };
    return { text: whole.text, streamed: text, pieces, completion, followed: (await generateText({ model, ...asked, ...more })).text };
  };
}
