// SPDX-License-Identifier: Apache-2.0
// The clients of the tests' coding agent, each with two verbs: ask the model for a call of a tool or for an answer in
// words, and answer its calls. All of them stream, and ask greedily.
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const timeout = 1_200_000, tokens = 200;

function anthropic(url, model, key, task) {
  const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0, timeout });
  const messages = [{ role: "user", content: task.task }];
  const tools = task.tools.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters }));
  return {
    async ask(tool, begins) {
      const stream = client.messages.stream({
        model, system: task.system, tools, messages, max_tokens: tokens, temperature: 0,
        tool_choice: tool ? { type: "tool", name: tool } : { type: "none" },
      });
      stream.on("streamEvent", (event) => event.type === "content_block_start" && begins());
      const { content, usage } = await stream.finalMessage();
      messages.push({ role: "assistant", content });
      return {
        text: content.map((block) => block.text ?? "").join(""),
        calls: content.filter((block) => block.type === "tool_use")
          .map((block) => ({ id: block.id, name: block.name, arguments: JSON.stringify(block.input) })),
        prompt: usage.input_tokens + usage.cache_read_input_tokens, completion: usage.output_tokens,
      };
    },
    answer(results) {
      const blocks = results.map(([call, content]) => ({ type: "tool_result", tool_use_id: call.id, content }));
      messages.push({ role: "user", content: blocks });
    },
  };
}

function responses(url, model, key, task) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout });
  const input = [{ role: "user", content: task.task }];
  const tools = task.tools.map((tool) => ({ type: "function", ...tool }));
  return {
    async ask(tool, begins) {
      const asked = { model, instructions: task.system, input, tools, max_output_tokens: tokens, temperature: 0 };
      const tool_choice = tool ? { type: "function", name: tool } : "none";
      let response;
      for await (const event of await client.responses.create({ ...asked, tool_choice, stream: true })) {
        if (event.type === "response.output_item.added") begins();
        response = event.response ?? response;
      }
      input.push(...response.output);
      const content = response.output.flatMap((item) => item.content ?? []);
      return {
        text: content.map((part) => part.text).join(""),
        calls: response.output.filter((item) => item.type === "function_call")
          .map((item) => ({ id: item.call_id, name: item.name, arguments: item.arguments })),
        prompt: response.usage.input_tokens, completion: response.usage.output_tokens,
      };
    },
    answer(results) {
      input.push(...results.map(([call, output]) => ({ type: "function_call_output", call_id: call.id, output })));
    },
  };
}

function ollama(url, model, key, task) {
  const client = new Ollama({ host: url, headers: { authorization: `Bearer ${key}` } });
  const messages = [{ role: "system", content: task.system }, { role: "user", content: task.task }];
  const tools = task.tools.map((tool) => ({ type: "function", function: tool }));
  return {
    async ask(tool, begins) {
      const message = { role: "assistant", content: "", tool_calls: [] };
      let last;
      const tool_choice = tool ? { type: "function", function: { name: tool } } : "none";
      const options = { temperature: 0, num_predict: tokens, tool_choice };
      for await (const part of await client.chat({ model, messages, tools, options, stream: true })) {
        if (part.message.content || part.message.tool_calls) begins();
        message.content += part.message.content;
        message.tool_calls.push(...(part.message.tool_calls ?? []));
        last = part;
      }
      messages.push(message);
      return {
        text: message.content,
        calls: message.tool_calls
          .map((call) => ({ name: call.function.name, arguments: JSON.stringify(call.function.arguments) })),
        prompt: last.prompt_eval_count, completion: last.eval_count,
      };
    },
    answer(results) {
      messages.push(...results.map(([call, content]) => ({ role: "tool", tool_name: call.name, content })));
    },
  };
}

export const clients = { anthropic, responses, ollama };
