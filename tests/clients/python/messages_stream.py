# SPDX-License-Identifier: Apache-2.0
"""One long stream with Anthropic's client: each piece of its text as a line of JSON, and at last the usage."""

import json
import sys

import anthropic

URL, MODEL = sys.argv[1:3]
client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0, timeout=120.0)
turn = {"role": "user", "content": "Tell a long story."}
more = {"temperature": 0, "ignore_eos": True}
with client.messages.stream(model=MODEL, messages=[turn], max_tokens=400, extra_body=more) as stream:
    for piece in stream.text_stream:
        print(json.dumps(piece), flush=True)
    print(json.dumps(stream.get_final_message().usage.output_tokens), flush=True)
