// SPDX-License-Identifier: Apache-2.0
import OpenAI from "openai";

import { baseURL, model, refused, run } from "./session.mjs";

const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const texts = ["the sea at night", "a lamp"];
const create = (more) => client.embeddings.create({ model, input: texts, ...more });

await run({
  async embeddings() {
    const coded = await create({});
    const plain = await create({ encoding_format: "float" });
    const short = await create({ input: texts[0], dimensions: 8 });
    return {
      coded: coded.data.map((one) => one.embedding), plain: plain.data.map((one) => one.embedding),
      short: short.data[0].embedding.length, tokens: coded.usage.prompt_tokens,
      long: await refused(() => create({ input: "lamp ".repeat(2000) })),
    };
  },
});
