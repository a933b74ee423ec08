# SPDX-License-Identifier: Apache-2.0
"""The clients of the tests' coding agent, each with two verbs: ask the model for a call of a tool or for an answer in
words, and answer its calls. All of them stream, and ask greedily."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

TIMEOUT = 1200.0
MOST_TOKENS = 200
Task = dict[str, Any]
Begins = Callable[[], None]
# A request with this choice among the tools, in the form of its API.
Asks = Callable[[Any], Any]


@dataclass(frozen=True)
class MadeCall:
    """A call of the model's, with its arguments in JSON."""

    identity: str
    name: str
    arguments: str


Answered = Iterable[tuple[MadeCall, str]]


@dataclass(frozen=True)
class AgentTurn:
    """An answer whole, with the counts of tokens that the client was told."""

    text: str
    calls: list[MadeCall]
    prompt: int
    completion: int


def choice_of(tool: str | None) -> Any:
    return "none" if tool is None else {"type": "function", "function": {"name": tool}}


class AnthropicAgent:
    def __init__(self, url: str, model: str, key: str, task: Task) -> None:
        import anthropic

        client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT)
        self.turns: list[Any] = [{"role": "user", "content": task["task"]}]
        tools = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in task["tools"]
        ]
        self.stream: Asks = lambda choice: client.messages.stream(
            model=model,
            system=task["system"],
            tools=tools,
            tool_choice=choice,
            messages=self.turns,
            max_tokens=MOST_TOKENS,
            extra_body={"temperature": 0},
        )

    def ask(self, tool: str | None, begins: Begins) -> AgentTurn:
        with self.stream({"type": "none"} if tool is None else {"type": "tool", "name": tool}) as stream:
            for event in stream:
                if event.type == "content_block_start":
                    begins()
            message = stream.get_final_message()
        self.turns.append({"role": "assistant", "content": message.content})
        text = "".join(block.text for block in message.content if block.type == "text")
        used = [block for block in message.content if block.type == "tool_use"]
        calls = [MadeCall(block.id, block.name, json.dumps(block.input)) for block in used]
        prompt = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        return AgentTurn(text, calls, prompt, message.usage.output_tokens)

    def answer(self, results: Answered) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": call.identity, "content": text} for call, text in results]
        self.turns.append({"role": "user", "content": blocks})


class ResponsesAgent:
    def __init__(self, url: str, model: str, key: str, task: Task) -> None:
        import openai

        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT)
        self.items: list[Any] = [{"role": "user", "content": task["task"]}]
        tools: list[Any] = [{"type": "function"} | tool for tool in task["tools"]]
        self.events: Asks = lambda choice: client.responses.create(
            model=model,
            instructions=task["system"],
            input=self.items,
            tools=tools,
            tool_choice=choice,
            max_output_tokens=MOST_TOKENS,
            temperature=0,
            stream=True,
        )

    def ask(self, tool: str | None, begins: Begins) -> AgentTurn:
        response: Any = None
        for event in self.events("none" if tool is None else {"type": "function", "name": tool}):
            if event.type == "response.output_item.added":
                begins()
            response = getattr(event, "response", response)
        self.items += response.output
        made = [item for item in response.output if item.type == "function_call"]
        calls = [MadeCall(item.call_id, item.name, item.arguments) for item in made]
        return AgentTurn(response.output_text, calls, response.usage.input_tokens, response.usage.output_tokens)

    def answer(self, results: Answered) -> None:
        self.items += [
            {"type": "function_call_output", "call_id": call.identity, "output": text} for call, text in results
        ]


class ChatAgent:
    """Turns in the form of a chat, which other clients have too."""

    def __init__(self, url: str, model: str, key: str, task: Task) -> None:
        self.url, self.model, self.key = url, model, key
        self.messages: list[Any] = [
            {"role": "system", "content": task["system"]},
            {"role": "user", "content": task["task"]},
        ]
        self.tools: list[Any] = [{"type": "function", "function": tool} for tool in task["tools"]]

    def asked(self, choice: Any) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "tools": self.tools,
            "tool_choice": choice,
            "max_tokens": MOST_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def chunks(self, choice: Any) -> Any:
        import openai

        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=TIMEOUT)
        return client.chat.completions.create(model=self.model, **self.asked(choice))

    def ask(self, tool: str | None, begins: Begins) -> AgentTurn:
        text, calls, usage = "", list[dict[str, Any]](), None
        for chunk in self.chunks(choice_of(tool)):
            for choice in chunk.choices:
                if not (text or calls) and (choice.delta.content or choice.delta.tool_calls):
                    begins()
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    if piece.index == len(calls):
                        function = {"name": piece.function.name, "arguments": ""}
                        calls.append({"id": piece.id, "type": "function", "function": function})
                    calls[piece.index]["function"]["arguments"] += piece.function.arguments or ""
            usage = getattr(chunk, "usage", None) or usage
        self.messages.append({"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {}))
        made = [MadeCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
        assert usage is not None
        return AgentTurn(text, made, usage.prompt_tokens, usage.completion_tokens)

    def answer(self, results: Answered) -> None:
        self.messages += [{"role": "tool", "tool_call_id": call.identity, "content": text} for call, text in results]


class LiteLLMAgent(ChatAgent):
    """The turns of a chat, which litellm's provider for Anthropic translates into messages and back."""

    def chunks(self, choice: Any) -> Any:
        import litellm

        litellm.suppress_debug_info = True
        where = {"api_base": self.url, "api_key": self.key, "timeout": TIMEOUT, "max_retries": 0}
        return litellm.completion(model=f"anthropic/{self.model}", **where, **self.asked(choice))


class OllamaAgent(ChatAgent):
    def ask(self, tool: str | None, begins: Begins) -> AgentTurn:
        import ollama

        client = ollama.Client(host=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=TIMEOUT)
        options = {"temperature": 0, "num_predict": MOST_TOKENS, "tool_choice": choice_of(tool)}
        text, told, part = "", list[Any](), None
        for part in client.chat(self.model, self.messages, tools=self.tools, options=options, stream=True):
            if not (text or told) and (part.message.content or part.message.tool_calls):
                begins()
            text += part.message.content or ""
            told += part.message.tool_calls or ()
        assert part is not None
        self.messages.append({"role": "assistant", "content": text} | ({"tool_calls": told} if told else {}))
        calls = [MadeCall("", call.function.name, json.dumps(dict(call.function.arguments))) for call in told]
        return AgentTurn(text, calls, part.prompt_eval_count, part.eval_count)

    def answer(self, results: Answered) -> None:
        self.messages += [{"role": "tool", "tool_name": call.name, "content": text} for call, text in results]


class LangChainAgent:
    def __init__(self, url: str, model: str, key: str, task: Task) -> None:
        from langchain_anthropic import ChatAnthropic
        from langchain_core.messages import ToolMessage

        self.result = ToolMessage
        tools = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in task["tools"]
        ]
        chat = ChatAnthropic(
            model=model,
            base_url=url,
            api_key=key,
            temperature=0,
            max_tokens=MOST_TOKENS,
            max_retries=0,
            timeout=TIMEOUT,
        )
        self.bound: Asks = lambda choice: chat.bind_tools(tools, tool_choice=choice)
        self.messages: list[Any] = [("system", task["system"]), ("human", task["task"])]

    def ask(self, tool: str | None, begins: Begins) -> AgentTurn:
        whole: Any = None
        for chunk in self.bound(tool or {"type": "none"}).stream(self.messages):
            if whole is not None and whole.content in ("", []) and chunk.content:
                begins()
            whole = chunk if whole is None else whole + chunk
        self.messages.append(whole)
        calls = [MadeCall(call["id"], call["name"], json.dumps(call["args"])) for call in whole.tool_calls]
        usage = whole.usage_metadata
        return AgentTurn(str(whole.text), calls, usage["input_tokens"], usage["output_tokens"])

    def answer(self, results: Answered) -> None:
        self.messages += [self.result(text, tool_call_id=call.identity) for call, text in results]


CLIENTS: dict[str, Callable[[str, str, str, Task], Any]] = {
    "anthropic": AnthropicAgent,
    "responses": ResponsesAgent,
    "chat": ChatAgent,
    "ollama": OllamaAgent,
    "langchain-anthropic": LangChainAgent,
    "litellm": LiteLLMAgent,
}
