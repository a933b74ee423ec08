# SPDX-License-Identifier: Apache-2.0
"""The table of the sessions in tests/clients, and the facts of each step that must hold whatever the client."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STEPS = ("chat", "stream", "tools", "structured", "errors", "cancel", "responses", "embeddings")
# The last step has a session of its own, with an embedding model.
EMBEDDINGS = STEPS[-1]
GENERATING, CHATS = STEPS[:-1], STEPS[:-2]
# The model's bound on a chat; see the sessions.
TOKENS = 24
CITIES, MOODS = ("Paris", "Rome"), ("good", "bad")
# Errors of their own that clients make of the server's words.
OVERFLOWS = {"langchain-openai": "OpenAIContextOverflowError", "litellm": "ContextWindowExceededError"}
# Those whose sessions ask for `json_object` too, as a part of "structured".
JSON_OBJECT = ("@ai-sdk/openai", "@ai-sdk/openai-compatible", "instructor")
SAID = {
    "model": (404, "there is no model 'nobody'"),
    "context": (400, "maximum context length is"),
    "value": (400, "temperature must be"),
}
Facts = dict[str, Any]


@dataclass(frozen=True)
class RealClient:
    """A client with the file of its session, the key of its pinned version (None: of the suite's own environment), the
    steps of its session, and the file of the one for embeddings, if there is one. Whether only `--long` runs it is told
    for those of JavaScript; it does so with all of Python that the suite has not."""

    name: str
    script: str
    pin: str | None
    steps: tuple[str, ...] = GENERATING
    embeddings: str | None = None
    is_long: bool = False

    @property
    def is_javascript(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def is_of_the_suite(self) -> bool:
        return self.pin is None

    @property
    def is_quick(self) -> bool:
        """True if it runs without `--long`."""
        return self.is_of_the_suite or (self.is_javascript and not self.is_long)

    @property
    def package(self) -> str:
        return self.name.partition(" ")[0]


CLIENTS = (
    RealClient("openai (Python)", "openai_session.py", None, STEPS, "openai_embeddings.py"),
    RealClient("openai (JavaScript)", "openai.mjs", "openai", STEPS, "openai_embeddings.mjs"),
    RealClient("@ai-sdk/openai", "ai_openai.mjs", "@ai-sdk/openai"),
    RealClient("@ai-sdk/openai-compatible", "ai_compatible.mjs", "@ai-sdk/openai-compatible", CHATS),
    RealClient("anthropic", "anthropic_session.py", "python:anthropic", CHATS),
    RealClient("ollama (Python)", "ollama_session.py", "python:ollama", CHATS),
    RealClient("ollama (JavaScript)", "ollama.mjs", "ollama", CHATS, is_long=True),
    RealClient("langchain-openai", "langchain_session.py", "python:langchain-openai"),
    RealClient("litellm", "litellm_session.py", "python:litellm"),
    RealClient("instructor", "instructor_session.py", "python:instructor", ("structured", "errors")),
    RealClient("pydantic-ai", "pydantic_ai_session.py", "python:pydantic-ai-slim"),
    RealClient("openai-agents", "agents_session.py", "python:openai-agents"),
)


def check(client: RealClient, step: str, facts: Facts) -> None:
    """Check the facts of one step; `facts` are those of all steps, and how many requests were aborted."""
    told = facts[step]
    assert "failed" not in told, told["failed"]
    CHECKS[step](client, told, facts)


def chat(client: RealClient, told: Facts, facts: Facts) -> None:
    assert told["text"] and told.get("finish") in (None, "stop", "length")
    assert told["prompt"] > 0 and 0 < told["completion"] <= TOKENS


def stream(client: RealClient, told: Facts, facts: Facts) -> None:
    """The same as a chat. Pieces that a busy machine delivers together are joined, down to one."""
    assert {name: value for name, value in told.items() if name != "pieces"} == facts["chat"]
    assert told["pieces"] > 0


def tools(client: RealClient, told: Facts, facts: Facts) -> None:
    assert told["name"] == "get_time" and told["arguments"].keys() == {"city"}
    assert told["arguments"]["city"] in CITIES and told["answer"]


def structured(client: RealClient, told: Facts, facts: Facts) -> None:
    for value in (told["value"], *told.get("others", ())):
        assert value.keys() == {"mood", "age"} and value["mood"] in MOODS and 0 <= value["age"] <= 120
    assert client.package not in JSON_OBJECT or facts["json_object"].get("is_object"), facts["json_object"]


def errors(client: RealClient, told: Facts, facts: Facts) -> None:
    for name, (status, says) in SAID.items():
        assert told[name]["status"] in (status, None) and says in told[name]["says"], told[name]
        assert told[name]["status"] or str(status) in told[name]["says"], told[name]
    assert told["context"]["kind"] == OVERFLOWS.get(client.name, told["context"]["kind"])


def cancel(client: RealClient, told: Facts, facts: Facts) -> None:
    assert told["ended"] and facts["aborted"] >= 1


def responses(client: RealClient, told: Facts, facts: Facts) -> None:
    assert told["text"] == told["streamed"] and told["text"] and told["followed"]
    assert told["pieces"] > 0 and told["completion"] > 0


def embeddings(client: RealClient, told: Facts, facts: Facts) -> None:
    """The numbers are the same in both forms, as far as a client keeps them."""
    assert len(told["coded"]) == len(told["plain"]) == 2 and told["coded"][0] != told["coded"][1]
    for coded, plain in zip(told["coded"], told["plain"], strict=True):
        assert len(coded) == len(plain) and abs(sum(one * one for one in coded) - 1.0) < 1e-5
        assert max(abs(one - other) for one, other in zip(coded, plain, strict=True)) < 1e-7
    assert told["short"] == 8 and told["tokens"] > 4
    assert told["long"]["status"] == 400 and "maximum context length is" in told["long"]["says"]


CHECKS: dict[str, Callable[[RealClient, Facts, Facts], None]] = {
    "chat": chat, "stream": stream, "tools": tools, "structured": structured, "errors": errors, "cancel": cancel,
    "responses": responses, "embeddings": embeddings,
}  # fmt: skip
