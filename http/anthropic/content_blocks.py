# SPDX-License-Identifier: Apache-2.0
"""The conversation of /v1/messages: turns of content blocks, read into the messages of a chat. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pontil.http.anthropic.thinking_seal import ThinkingSeal
from pontil.http.fields.picture import LinkedPicture, Picture, encoded_picture, linked_picture
from pontil.http.fields.recording import MixedContent
from pontil.http.openai.chat.kept_beginning import KeptBeginning
from pontil.http.openai.chat.prompt import Message
from pontil.http.schema.message_schema import IMAGE_URL_SCHEMA, MAX_MESSAGES
from pontil.http.schema.parameter import Schema, opened
from pontil.http.schema.reader import Fields

ROLES = ("user", "assistant", "system")
UNSUPPORTED = "unsupported_parameter"
MAX_BLOCKS = 1024
# Blocks of text are paragraphs.
BETWEEN = "\n\n"
# A message of the system between turns: few templates have a place for it there, and its place keeps prompts alike. The
# tags are those of Claude Code, which sends such messages.
REMINDER = "<system-reminder>\n{}\n</system-reminder>"
# Members of blocks that answers have, and that clients send back.
MADE_HERE = ("citations", "caller")
IMAGE = "image"
GIVE = 'give {"type": "base64", "media_type": "image/png", "data": …}'
CONTROL, EPHEMERAL = "cache_control", "ephemeral"
# Anthropic's times of a cached prefix, in seconds.
TTLS = {"5m": 300, "1h": 3600}


def read_text_block(block: Fields) -> str:
    text = block.required_text("text")
    finish_block(block)
    return text


def read_image_block(block: Fields) -> Picture | LinkedPicture:
    source = block.required_object("source", f"is missing: {GIVE}")
    kind = source.text("type")
    if kind == "base64":
        # The bytes themselves say what they are.
        source.text("media_type")
        picture: Picture | LinkedPicture = encoded_picture(source, "data", source.required_text("data"))
    elif kind == "url":
        picture = linked_picture(source, "url", GIVE)
    else:
        raise source.unfit("type", kind, f'"base64": {GIVE}', UNSUPPORTED)
    source.ignore_rest()
    finish_block(block)
    return picture


def finish_block(block: Fields) -> None:
    """Leave out what was not read. Prefixes are cached without being asked, so that cache_control without a time
    changes nothing."""
    for name in MADE_HERE:
        block.take(name)
    kept_seconds(block)
    block.ignore_rest()


def kept_seconds(block: Fields) -> int | None:
    """Return for how long the prompt up to this block is to be leased, if its cache_control says so."""
    control = block.object(CONTROL)
    if control is None:
        return None
    kind, ttl = control.text("type"), control.text("ttl")
    if kind not in (None, EPHEMERAL):
        raise control.unfit("type", kind, f'"{EPHEMERAL}"')
    if ttl is None:
        block.without_effect(CONTROL)
        return None
    if ttl not in TTLS:
        raise control.unfit("ttl", ttl, f"one of {', '.join(TTLS)}")
    return TTLS[ttl]


def read_control(fields: Fields, name: str) -> int | None:
    """Return for how long the whole prompt is to be leased."""
    return kept_seconds(fields)


def read_blocks(fields: Fields, name: str) -> list[Fields]:
    """Return the blocks of a list."""
    return fields.objects(name, MAX_BLOCKS)


Part = str | Picture | LinkedPicture
PartReaders = Mapping[str, Callable[[Fields], Part]]
TEXT_ONLY: dict[str, Callable[[Fields], Part]] = {"text": read_text_block}


def read_content(fields: Fields, name: str, readers: PartReaders) -> str | MixedContent:
    """Return a text, or what blocks of the kinds that are read hold."""
    value = fields.take(name)
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise fields.typed(name, value, "a string or a list of text blocks")
    return paragraphs([read_of_kind(block, readers) for block in read_blocks(fields, name)])


def read_text(fields: Fields, name: str) -> str:
    text = read_content(fields, name, TEXT_ONLY)
    assert isinstance(text, str), "other blocks were refused"
    return text


def paragraphs(parts: Sequence[Part]) -> str | MixedContent:
    """Return the paragraphs of one text, or texts with the images between them."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return BETWEEN.join(texts)
    runs: list[Part] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        found = list(run)
        runs += [BETWEEN.join(map(str, found))] if is_text else found
    return MixedContent(tuple(runs))


@dataclass(frozen=True, slots=True)
class SystemText:
    """The text before all messages, and the beginnings of it that are to be leased."""

    text: str
    marks: tuple[KeptBeginning, ...]


def read_system(fields: Fields, name: str) -> SystemText:
    text, length, marks = read_text(fields, name), 0, []
    value = fields.take(name)
    for block in read_blocks(fields, name) if isinstance(value, list) else ():
        length += len(block.data["text"]) + (len(BETWEEN) if length else 0)
        if (seconds := kept_seconds(block)) is not None and length:
            marks.append(KeptBeginning(seconds, 0, length))
    return SystemText(text, tuple(marks))


def read_of_kind(block: Fields, readers: PartReaders) -> Part:
    kind = block.text("type")
    reader = readers.get(kind or "")
    if reader is None:
        raise unknown(block, kind, tuple(readers))
    return reader(block)


def unknown(block: Fields, kind: str | None, known: Sequence[str]) -> Exception:
    says = f"is {kind!r:.100}, which is not read here: give blocks of the types {', '.join(known)}"
    return block.wrong("type", says, UNSUPPORTED)


@dataclass(slots=True)
class TurnBlocks:
    """The blocks of one message. An assistant's calls follow its text, and its reasoning precedes it."""

    texts: list[Part] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)
    # The times of leases in seconds, each with the results, texts and calls up to its end.
    marks: list[tuple[int, int, int, int]] = field(default_factory=list)

    def mark(self, block: Fields) -> None:
        """Note that the prompt up to the block that was added last is to be leased, if it says so."""
        if (seconds := kept_seconds(block)) is not None:
            self.marks.append((seconds, len(self.results), len(self.texts), len(self.calls)))

    @property
    def assistant(self) -> Message:
        message: Message = {"role": "assistant"}
        if self.thoughts:
            message["reasoning_content"] = BETWEEN.join(self.thoughts)
        if self.texts or not self.calls:
            message["content"] = paragraphs(self.texts)
        return message | ({"tool_calls": self.calls} if self.calls else {})


BlockReaders = Mapping[str, Callable[[Fields, TurnBlocks], None]]


class Conversation:
    """The messages of a chat, built turn by turn. `seal` tells the reasoning that a model here wrote, and
    `read_reference` describes a tool that a result names."""

    def __init__(self, seal: ThinkingSeal, read_reference: Callable[[Fields], str]) -> None:
        self.seal = seal
        self.in_results: PartReaders = TEXT_ONLY | {"tool_reference": read_reference, IMAGE: read_image_block}
        self.messages: list[Message] = []
        self.call_ids: set[str] = set()
        # The texts and images of the user's turn that is open: consecutive turns are one.
        self.open: list[Part] = []
        self.marks: list[KeptBeginning] = []
        self.user: BlockReaders = {
            "text": self.add_text,
            IMAGE: self.add_image,
            "tool_result": self.add_result,
        }
        self.assistant: BlockReaders = {
            "text": self.add_text,
            "thinking": self.add_thought,
            "redacted_thinking": self.leave_out,
            "tool_use": self.add_call,
        }

    def read(self, turns: Sequence[Fields]) -> None:
        for fields in turns:
            self.add(fields)
        self.close()

    def add(self, fields: Fields) -> None:
        role = fields.text("role")
        if role not in ROLES:
            raise fields.wrong("role", f"must be user, assistant or system, not {role!r:.60}")
        if role == "system" and fields.data.get("content") is not None:
            self.remind(read_text(fields, "content"))
            fields.ignore_rest()
            return
        turn = self.turn(fields, self.user if role == "user" else self.assistant)
        fields.ignore_rest()
        if role == "user":
            if turn.results:
                self.close()
                self.messages += turn.results
            self.mark_user(turn)
            self.open += turn.texts
        else:
            self.close()
            for seconds, _, texts, calls in turn.marks:
                length = len(paragraphs(turn.texts[:texts]))
                at = len(self.messages)
                self.marks.append(KeptBeginning(seconds, at + 1) if calls else KeptBeginning(seconds, at, length))
            self.messages.append(turn.assistant)

    def mark_user(self, turn: TurnBlocks) -> None:
        """Note the marks of a user's turn, whose results are messages by now, and whose texts follow the open ones."""
        first_result = len(self.messages) - len(turn.results)
        for seconds, results, texts, _ in turn.marks:
            if texts:
                length = len(paragraphs([*self.open, *turn.texts[:texts]]))
                self.marks.append(KeptBeginning(seconds, len(self.messages), length))
            else:
                self.marks.append(KeptBeginning(seconds, first_result + results))

    def remind(self, text: str) -> None:
        """Add what the system says: before any turn to its own message, later to the user's turn."""
        if self.open or any(message["role"] != "system" for message in self.messages):
            self.open += [REMINDER.format(text)] if text else []
        elif self.messages:
            self.messages[0]["content"] += BETWEEN + text
        elif text:
            self.messages.append({"role": "system", "content": text})

    def close(self) -> None:
        """End the user's turn."""
        if self.open:
            self.messages.append({"role": "user", "content": paragraphs(self.open)})
            self.open = []

    def turn(self, fields: Fields, readers: BlockReaders) -> TurnBlocks:
        turn, content = TurnBlocks(), fields.take("content")
        if isinstance(content, str):
            turn.texts.append(content)
            return turn
        if not isinstance(content, list):
            raise fields.typed("content", content, "a string or a list of blocks")
        for block in read_blocks(fields, "content"):
            kind = block.text("type")
            reader = readers.get(kind or "")
            if reader is None:
                raise unknown(block, kind, tuple(readers))
            reader(block, turn)
        return turn

    def add_text(self, block: Fields, turn: TurnBlocks) -> None:
        turn.texts.append(read_text_block(block))
        turn.mark(block)

    def add_image(self, block: Fields, turn: TurnBlocks) -> None:
        turn.texts.append(read_image_block(block))
        turn.mark(block)

    def add_thought(self, block: Fields, turn: TurnBlocks) -> None:
        """Add reasoning if its seal holds. Another server's, or another launch's, is left out."""
        thought, signature = block.required_text("thinking"), block.text("signature") or ""
        finish_block(block)
        if not self.seal.holds(thought, signature):
            block.ignored.note(f"{block.path}signature")
        elif thought:
            turn.thoughts.append(thought)

    def leave_out(self, block: Fields, turn: TurnBlocks) -> None:
        """Leave out reasoning that another server enciphered."""
        block.required_text("data")
        block.ignored.note(f"{block.path}redacted_thinking")

    def add_call(self, block: Fields, turn: TurnBlocks) -> None:
        name, arguments = block.required_text("name"), block.required_object("input").data
        identity = block.required_text("id")
        finish_block(block)
        self.call_ids.add(identity)
        call = {"id": identity, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        turn.calls.append(call)
        turn.mark(block)

    def add_result(self, block: Fields, turn: TurnBlocks) -> None:
        identity = block.required_text("tool_use_id")
        if identity not in self.call_ids:
            raise block.wrong("tool_use_id", f"is {identity!r:.100}, which no tool_use block before it has")
        content = read_content(block, "content", self.in_results)
        if block.boolean("is_error", False):
            failed = "Error: "
            content = failed + content if isinstance(content, str) else MixedContent((failed, *content.parts))
        finish_block(block)
        turn.results.append({"role": "tool", "tool_call_id": identity, "content": content})
        turn.mark(block)


def read_turns(fields: Fields, name: str) -> tuple[Fields, ...]:
    """Return the messages, whose blocks are not read yet."""
    value = fields.take(name)
    if not isinstance(value, list):
        raise fields.typed(name, value, "a list of messages")
    if not value:
        raise fields.wrong(name, "is empty: give at least one")
    return tuple(fields.objects(name, MAX_MESSAGES))


TEXT: Schema = {"type": "string"}
TEXT_BLOCK = opened(["type", "text"], type={"const": "text"}, text=TEXT)
TEXT_BLOCKS: Schema = {"type": "array", "items": TEXT_BLOCK, "maxItems": MAX_BLOCKS}
TEXTS: Schema = {"title": "a text, or text blocks", "anyOf": [TEXT, TEXT_BLOCKS]}
IMAGE_SOURCE: Schema = {
    "anyOf": [
        opened(
            ["type", "data"],
            type={"const": "base64"},
            media_type={"type": ["string", "null"]},
            data={"type": "string", "contentEncoding": "base64"},
        ),
        opened(["type", "url"], type={"const": "url"}, url=IMAGE_URL_SCHEMA),
    ]
}
IMAGE_BLOCK = opened(["type", "source"], type={"const": IMAGE}, source=IMAGE_SOURCE)
REFERENCE = opened(["type", "tool_name"], type={"const": "tool_reference"}, tool_name=TEXT)
IN_RESULTS: list[Schema] = [TEXT_BLOCK, IMAGE_BLOCK, REFERENCE]
RESULT_BLOCKS: Schema = {"type": "array", "items": {"anyOf": IN_RESULTS}, "maxItems": MAX_BLOCKS}
RESULT_BLOCK = opened(
    ["type", "tool_use_id"],
    type={"const": "tool_result"},
    tool_use_id=TEXT,
    content={"anyOf": [{"type": ["string", "null"]}, RESULT_BLOCKS]},
    is_error={"type": ["boolean", "null"]},
)
ASSISTANT_BLOCKS = [
    TEXT_BLOCK,
    opened(["type", "thinking"], type={"const": "thinking"}, thinking=TEXT, signature={"type": ["string", "null"]}),
    opened(["type", "data"], type={"const": "redacted_thinking"}, data=TEXT),
    opened(["type", "id", "name", "input"], type={"const": "tool_use"}, id=TEXT, name=TEXT, input={"type": "object"}),
]


def turn_schema(role: str, blocks: list[Schema]) -> Schema:
    content = {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": blocks}, "maxItems": MAX_BLOCKS}]}
    return opened(["role", "content"], role={"const": role}, content=content)


TURNS: Schema = {
    "title": f"messages of the user and the assistant, at most {MAX_MESSAGES}",
    "type": "array",
    "items": {
        "anyOf": [
            turn_schema("user", [TEXT_BLOCK, IMAGE_BLOCK, RESULT_BLOCK]),
            turn_schema("assistant", ASSISTANT_BLOCKS),
            turn_schema("system", [TEXT_BLOCK]),
        ]
    },
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
}
