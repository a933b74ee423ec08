# SPDX-License-Identifier: Apache-2.0
"""The content blocks of a message, built from the parts of its answer, and the events that tell of them in Anthropic's
order."""

import json
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.openai.chat.prompt import arguments_object
from pontil.runtime.chat.answer_part import AnswerPart, Arguments, Call, Content, Reasoning

TEXT, THINKING, TOOL = "text", "thinking", "tool_use"
KINDS: dict[type[AnswerPart], str] = {Content: TEXT, Reasoning: THINKING, Call: TOOL, Arguments: TOOL}
# The delta of each kind of block, and its member.
DELTAS = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    TOOL: ("input_json_delta", "partial_json"),
}


def message_event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind} | fields, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


class MessageBlocks:
    """The blocks of one answer. One is open at a time: what follows it closes it. `token` makes the ids of calls, so
    that an answer that is told again has the same ones."""

    def __init__(self, token: str, seal: ThinkingSeal) -> None:
        self.token, self.seal = token, seal
        self.blocks: list[dict[str, Any]] = []
        self.current: dict[str, Any] | None = None
        self.pieces: list[str] = []
        self.frame = b""

    def take(self, parts: Iterable[AnswerPart]) -> bytes:
        """Add the next parts of the answer, and return their events."""
        return b"".join([self.add(part) for part in parts])

    def add(self, part: AnswerPart) -> bytes:
        kind = KINDS[type(part)]
        if isinstance(part, Call):
            return self.begin({"type": kind, "id": part.identity or self.call_id, "name": part.name, "input": {}})
        lead = b""
        if self.current is None or self.current["type"] != kind:
            assert kind != TOOL, "arguments come right behind their call"
            lead = self.begin({"type": kind, kind: ""} | ({"signature": ""} if kind == THINKING else {}))
        self.pieces.append(part.text)
        return b"%b%b%b}}\n\n" % (lead, self.frame, encode_basestring_ascii(part.text).encode())

    @property
    def call_id(self) -> str:
        return f"toolu_{self.token}{self.index:02x}"

    @property
    def index(self) -> int:
        """The index of the next block."""
        return len(self.blocks) + (self.current is not None)

    def begin(self, block: dict[str, Any]) -> bytes:
        closing_events, index = self.close(), len(self.blocks)
        self.current, self.pieces = block, []
        delta, member = DELTAS[block["type"]]
        head = f'"index":{index},"delta":{{"type":"{delta}","{member}":'
        self.frame = b'event: content_block_delta\ndata: {"type":"content_block_delta",%b' % head.encode()
        return closing_events + message_event("content_block_start", index=index, content_block=block)

    def close(self) -> bytes:
        """Close the open block, if there is one."""
        block, text, index = self.current, "".join(self.pieces), len(self.blocks)
        if block is None:
            return b""
        self.current = None
        signed = b""
        # The arguments of a call that was cut are in the events only.
        block = block | ({"input": arguments_object(text)} if block["type"] == TOOL else {block["type"]: text})
        if block["type"] == THINKING:
            block["signature"] = self.seal.signature(text)
            delta = {"type": "signature_delta", "signature": block["signature"]}
            signed = message_event("content_block_delta", index=index, delta=delta)
        self.blocks.append(block)
        return signed + message_event("content_block_stop", index=index)
