# SPDX-License-Identifier: Apache-2.0
"""One long stream with Ollama's client: each piece of its text as a line of JSON, and at last the count."""

import json
import sys

import ollama

URL, MODEL = sys.argv[1:3]
client = ollama.Client(host=URL, timeout=120.0)
turn = {"role": "user", "content": "Tell a long story."}
options = {"temperature": 0, "ignore_eos": True, "num_predict": 400}
for part in client.chat(MODEL, [turn], stream=True, options=options):
    print(json.dumps(part.eval_count if part.done else part.message.content), flush=True)
