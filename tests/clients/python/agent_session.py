# SPDX-License-Identifier: Apache-2.0
"""A coding agent's session with one of two clients: it has the model read a file, edit it and run it, each by a call
that the agent carries out, and then tell of it at length. Prints each piece of the last answer, and at last the facts.

The calls are asked for by name, and their arguments closed, so that a model of random weights makes them. Ollama's
client leaves additionalProperties out of what it sends, so that such a model would go on with properties of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

URL, MODEL, CLIENT = sys.argv[1:4]
GREEDY = {"temperature": 0}
LONG = GREEDY | {"ignore_eos": True}
TOKENS, CALL_TOKENS = 200, 100
SYSTEM = "You edit programs."
TASK = "Make the program print two, and run it."
PROGRAMS = ["print('one')", "print('two')"]


def parameters(**enums: list[str]) -> dict[str, Any]:
    properties = {name: {"type": "string", "enum": values} for name, values in enums.items()}
    return {"type": "object", "properties": properties, "required": [*enums], "additionalProperties": False}


TOOLS = {
    "read_file": parameters(path=["program.py"]),
    "edit_file": parameters(path=["program.py"], text=PROGRAMS),
    "run_file": parameters(path=["program.py"]),
}


def carry_out(name: str, path: str, text: str = "") -> str:
    """Do what a call asks for, in the working directory."""
    if name == "read_file":
        return Path(path).read_text()
    if name == "edit_file":
        Path(path).write_text(text)
        return "done"
    return subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout


class AnthropicAgent:
    def __init__(self) -> None:
        import anthropic

        self.client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0, timeout=120.0)
        self.turns: list[Any] = [{"role": "user", "content": TASK}]
        self.tools: list[Any] = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]

    def step(self, name: str) -> dict[str, Any]:
        message = self.client.messages.create(
            model=MODEL,
            system=SYSTEM,
            messages=self.turns,
            tools=self.tools,
            max_tokens=CALL_TOKENS,
            tool_choice={"type": "tool", "name": name},
            extra_body=GREEDY,
        )
        (call,) = (block for block in message.content if block.type == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": carry_out(call.name, **call.input)}
        self.turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        return {call.name: call.input}

    def tell(self) -> int:
        with self.client.messages.stream(
            model=MODEL, system=SYSTEM, messages=self.turns, max_tokens=TOKENS, extra_body=LONG
        ) as stream:
            for piece in stream.text_stream:
                say(piece)
            return int(stream.get_final_message().usage.output_tokens)


class ResponsesAgent:
    def __init__(self) -> None:
        import openai

        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0, timeout=120.0)
        self.items: list[Any] = [{"role": "user", "content": TASK}]
        self.tools: list[Any] = [
            {"type": "function", "name": name, "parameters": schema, "strict": True} for name, schema in TOOLS.items()
        ]

    def step(self, name: str) -> dict[str, Any]:
        response = self.client.responses.create(
            model=MODEL,
            instructions=SYSTEM,
            input=self.items,
            tools=self.tools,
            max_output_tokens=CALL_TOKENS,
            tool_choice={"type": "function", "name": name},
            temperature=0,
        )
        (call,) = (item for item in response.output if item.type == "function_call")
        arguments = json.loads(call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": carry_out(call.name, **arguments)}
        self.items += [*response.output, result]
        return {call.name: arguments}

    def tell(self) -> int:
        tokens = 0
        for event in self.client.responses.create(
            model=MODEL, instructions=SYSTEM, input=self.items, max_output_tokens=TOKENS, stream=True, extra_body=LONG
        ):
            if event.type == "response.output_text.delta":
                say(event.delta)
            elif event.type in ("response.completed", "response.incomplete"):
                tokens = event.response.usage.output_tokens
        return tokens


def say(piece: str) -> None:
    print(json.dumps(piece), flush=True)


agent: Any = {"anthropic": AnthropicAgent, "responses": ResponsesAgent}[CLIENT]()
Path("program.py").write_text(PROGRAMS[0])
calls = [agent.step(name) for name in TOOLS]
say(json.dumps({"calls": calls, "tokens": agent.tell(), "program": Path("program.py").read_text()}))
