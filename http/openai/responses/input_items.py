# SPDX-License-Identifier: Apache-2.0
"""The input of /v1/responses: a text, or items of a conversation, in the form in which they are stored. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from pontil.http.fields.picture import LinkedPicture, Picture, linked_picture
from pontil.http.schema.message_schema import IMAGE_URL_SCHEMA, MAX_MESSAGES
from pontil.http.schema.parameter import Schema
from pontil.http.schema.reader import Fields

ROLES = ("user", "assistant", "system", "developer")
MESSAGE, CALL, OUTPUT = "message", "function_call", "function_call_output"
CUSTOM_CALL, CUSTOM_OUTPUT = "custom_tool_call", "custom_tool_call_output"
IMAGE, GIVE = "input_image", 'give "data:image/png;base64,…"'
REASONING, REFERENCE = "reasoning", "item_reference"
# Items that tell of tools which run at OpenAI, and hold nothing for another model: they are left out.
MADE_ELSEWHERE = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "compaction",
)
# Types of text parts, with the field that holds the text.
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
THOUGHT_PARTS = {"reasoning_text": "text", "summary_text": "text", "text": "text"}
UNSUPPORTED = "unsupported_parameter"
# Members of items and parts of an output, which clients send back. They are made here, and nothing is read from them.
MADE_HERE = ("status", "annotations", "logprobs")
# Members that only other servers make: the values with which a strict server takes them too.
INERT_MEMBERS: dict[str, tuple[Any, ...]] = {"encrypted_content": ("",), "phase": ()}
# Members of items that hold a text of the conversation.
SAID = ("arguments", "input", "output")
MAX_ID_CHARACTERS = 256
MAX_PARTS = 1024

Item = dict[str, Any]


class ImagePart(Item):
    """A part in the form in which it is stored, with the `picture` that was read from it."""

    def __init__(self, url: str, picture: Picture | LinkedPicture) -> None:
        super().__init__(type=IMAGE, image_url=url, detail="auto")
        self.picture = picture


def read_input(fields: Fields, name: str) -> tuple[Item, ...]:
    """Return the items; a text is one message of the user."""
    value = fields.take(name)
    if isinstance(value, str):
        return (message("user", value),)
    if not isinstance(value, list):
        raise fields.typed(name, value, "a string or a list of items")
    if len(value) > MAX_MESSAGES:
        raise fields.wrong(name, f"may hold at most {MAX_MESSAGES} items")
    items = (read_item(fields.item(item, f"{name}[{index}]")) for index, item in enumerate(value))
    return tuple(item for item in items if item is not None)


def message(role: str, text: str) -> Item:
    return {"type": MESSAGE, "role": role, "content": [text_part(role, text)], "status": "completed"}


def text_part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def read_item(fields: Fields) -> Item | None:
    """Return an item with the fields that are used; clients send items of answers back with further ones. None for one
    that is left out."""
    kind = fields.text("type")
    if kind is None:
        kind = MESSAGE if fields.data.get("role") is not None or "id" not in fields.data else REFERENCE
    if kind in MADE_ELSEWHERE and not fields.ignored.strict:
        fields.ignored.note(f"{fields.path}{kind}")
        return None
    reader = ITEM_READERS.get(kind)
    if reader is None:
        says = f"is {kind!r:.100}, which this server has not: give items of the types {', '.join(ITEM_READERS)}"
        raise fields.wrong("type", says, UNSUPPORTED)
    item = {"type": kind} | own_id(fields) | reader(fields)
    ignore_members(fields)
    return item


def ignore_members(fields: Fields) -> None:
    """Leave out what was not read of an item or a part."""
    for name in MADE_HERE:
        fields.take(name)
    if fields.ignored.strict:
        fields.neutral(INERT_MEMBERS)
    fields.ignore_rest()


def own_id(fields: Fields) -> Item:
    name = fields.text("id")
    if name is not None and len(name) > MAX_ID_CHARACTERS:
        raise fields.wrong("id", f"may have at most {MAX_ID_CHARACTERS} characters")
    return {} if name is None else {"id": name}


def read_message(fields: Fields) -> Item:
    role = fields.text("role")
    if role not in ROLES:
        raise fields.wrong("role", f"must be one of {', '.join(ROLES)}")
    return {"role": role, "content": read_content(fields, "content", role), "status": "completed"}


def read_texts(fields: Fields, name: str, kinds: Mapping[str, str]) -> list[str]:
    """Return the texts of a list of parts of these kinds. Null counts as no text."""
    return [read_part(part, kinds) for part in fields.objects(name, MAX_PARTS)]


def read_content(fields: Fields, name: str, role: str) -> list[Item]:
    """Return a string as one part, or parts; those with images are the user's, and of results of tools."""
    value = fields.take(name)
    if isinstance(value, str):
        return [text_part(role, value)]
    sees = role in ("user", "tool")
    return [
        read_image(part) if sees and part.data.get("type") == IMAGE else text_part(role, read_part(part, TEXT_PARTS))
        for part in fields.objects(name, MAX_PARTS)
    ]


def read_image(fields: Fields) -> ImagePart:
    if fields.take("file_id") is not None:
        says = f"names a file, and this server keeps none: leave it out, and for image_url {GIVE}"
        raise fields.wrong("file_id", says, UNSUPPORTED)
    picture = linked_picture(fields, "image_url", GIVE)
    fields.neutral({"detail": ("auto",)})
    ignore_members(fields)
    return ImagePart(fields.data["image_url"], picture)


def read_part(fields: Fields, kinds: Mapping[str, str]) -> str:
    kind = fields.text("type")
    if kind is None or kind not in kinds:
        says = f"is {kind!r:.100}, which is not read here: give parts of the type {next(iter(kinds))}"
        raise fields.wrong("type", says, UNSUPPORTED)
    text = fields.required_text(kinds[kind])
    ignore_members(fields)
    return text


def read_call(fields: Fields) -> Item:
    return read_call_of(fields, "arguments")


def read_custom_call(fields: Fields) -> Item:
    return read_call_of(fields, "input")


def read_call_of(fields: Fields, said: str) -> Item:
    call = {name: fields.required_text(name) for name in ("call_id", "name", said)}
    namespace = fields.text("namespace")
    return call | ({} if namespace is None else {"namespace": namespace}) | {"status": "completed"}


def read_call_output(fields: Fields) -> Item:
    if fields.take("output") is None:
        raise fields.wrong("output", "is missing")
    parts = read_content(fields, "output", "tool")
    has_images = any(part["type"] == IMAGE for part in parts)
    output = parts if has_images else "".join(part["text"] for part in parts)
    return {"call_id": fields.required_text("call_id"), "output": output, "status": "completed"}


def read_reasoning(fields: Fields) -> Item:
    """Read reasoning. What another server encrypted cannot be read, and is left out."""
    thoughts, summaries = (read_texts(fields, name, THOUGHT_PARTS) for name in ("content", "summary"))
    return {
        "summary": [{"type": "summary_text", "text": text} for text in summaries],
        "content": [{"type": "reasoning_text", "text": text} for text in thoughts],
    }


def read_reference(fields: Fields) -> Item:
    fields.required_text("id")
    return {}


def characters_of(item: Item) -> int:
    """Return the number of characters of an item's texts and of its images as they are stored."""
    said = [item.get(name, "") for name in SAID]
    parts = [*item.get("content", ()), *item.get("summary", ())]
    parts += [part for one in said if not isinstance(one, str) for part in one]
    texts = [one for one in said if isinstance(one, str)]
    return sum(map(len, texts)) + sum(len(part["image_url" if part["type"] == IMAGE else "text"]) for part in parts)


ITEM_READERS: Mapping[str, Callable[[Fields], Item]] = {
    MESSAGE: read_message,
    CALL: read_call,
    OUTPUT: read_call_output,
    CUSTOM_CALL: read_custom_call,
    CUSTOM_OUTPUT: read_call_output,
    REASONING: read_reasoning,
    REFERENCE: read_reference,
}


def input_schema() -> Schema:
    text: Schema = {"type": "string"}
    image: Schema = {
        "type": "object",
        "properties": {"type": {"const": IMAGE}, "image_url": IMAGE_URL_SCHEMA},
        "required": ["type", "image_url"],
    }
    shapes = [*part_schema(TEXT_PARTS)["anyOf"], image]
    parts = {"type": "array", "items": {"anyOf": shapes}, "maxItems": MAX_PARTS}
    thoughts = {"type": ["array", "null"], "items": part_schema(THOUGHT_PARTS), "maxItems": MAX_PARTS}
    content = {"anyOf": [{"type": ["string", "null"]}, parts]}
    items = [
        item_schema([MESSAGE, None], ["role"], role={"enum": list(ROLES)}, content=content),
        item_schema([CALL], ["type", "call_id", "name", "arguments"], call_id=text, name=text, arguments=text),
        item_schema([CUSTOM_CALL], ["type", "call_id", "name", "input"], call_id=text, name=text, input=text),
        item_schema(
            [OUTPUT, CUSTOM_OUTPUT], ["type", "call_id", "output"], call_id=text, output={"anyOf": [text, parts]}
        ),
        item_schema([REASONING], ["type"], content=thoughts, summary=thoughts),
        item_schema([REFERENCE, None], ["id"]),
    ]
    many = {"type": "array", "items": {"anyOf": items}, "maxItems": MAX_MESSAGES}
    return {"title": f"a text, or at most {MAX_MESSAGES} items of a conversation", "anyOf": [text, many]}


def item_schema(kinds: list[str | None], required: list[str], /, **properties: Schema) -> Schema:
    """Return the schema of an item, which may have further fields."""
    identity: Schema = {"type": "string" if "id" in required else ["string", "null"], "maxLength": MAX_ID_CHARACTERS}
    return {
        "type": "object",
        "properties": {"type": {"enum": kinds}, "id": identity} | properties,
        "required": required,
    }


def part_schema(kinds: Mapping[str, str]) -> Schema:
    shapes = [
        {
            "type": "object",
            "properties": {"type": {"const": kind}, field: {"type": "string"}},
            "required": ["type", field],
        }
        for kind, field in kinds.items()
    ]
    return {"anyOf": shapes}
