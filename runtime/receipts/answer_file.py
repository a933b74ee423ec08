# SPDX-License-Identifier: Apache-2.0
"""Files that hold receipts: a receipt by itself, several, an answer that carries them, or the events of a stream."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.receipts.statement import NoReceipt, Receipt, ReceiptError

DATA = "data:"
# More than any answer has.
MOST_CHOICES = 1 << 16
# Fields of a response or message that an event tells of.
HEADS = {"id", "receipt"}


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """The receipts of a file, in the order of choices, and the answer that carries them, put together if it is a
    stream."""

    receipts: list[Receipt]
    answer: dict[str, Any] = field(default_factory=dict)

    def check_answer(self) -> None:
        """Raise ReceiptError for receipts that are of another answer."""
        for receipt in self.receipts:
            name, stated = self.answer.get("id"), receipt.statement["id"]
            if name not in (None, stated):
                raise ReceiptError(f"the receipt is of {stated!r:.60}, and this answer is {name!r:.60}")

    def texts(self, number: int) -> list[str]:
        """Return the texts that the answer shows of the choice with this number, through all prompts."""
        return list(shown_texts(self.answer, number))


def read_answer_file(text: str) -> AnswerFile:
    """Read a file. Raises NoReceipt for one without a receipt, and ReceiptError for one whose receipt was changed."""
    try:
        data = json.loads(text)
    except ValueError:
        told = events_in(text)
        receipts = [event["receipt"] for event in told if "receipt" in event]
        return AnswerFile(receipts_in(receipts[-1] if receipts else None), streamed_answer(told))
    except RecursionError:
        raise NoReceipt("it is nested too deeply for a receipt") from None
    if isinstance(data, dict) and "statement" not in data:
        return AnswerFile(receipts_in(data.get("receipt")), data)
    return AnswerFile(receipts_in(data))


def receipts_in(data: Any) -> list[Receipt]:
    """Return the receipts of this field. Raises ReceiptError."""
    made = [Receipt.from_json(one) for one in (data if isinstance(data, list) and data else [data])]
    return made


def events_in(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, of which each line has one: server-sent events, or objects by themselves. One that
    tells of a response or a message has its fields."""
    told = []
    for line in text.splitlines():
        try:
            event = json.loads(line.removeprefix(DATA))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            inside = [one for name in ("response", "message") if isinstance(one := event.get(name), dict)]
            told.append(event | next((one for one in inside if one.keys() & HEADS), {}))
    return told


def streamed_answer(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer that these events tell: its id, and its texts, each in one piece, in the shapes of whole
    answers."""
    texts: defaultdict[int, str] = defaultdict(str)
    blocks: defaultdict[Any, str] = defaultdict(str)
    calls = set[int]()
    for event in events:
        for choice in blocks_in(event.get("choices")):
            delta, index = choice.get("delta"), choice.get("index")
            said = delta if isinstance(delta, dict) else choice
            if isinstance(index, int) and 0 <= index < MOST_CHOICES:
                texts[index] += text_of(said, "content") + text_of(said, "text")
                calls |= {index} if said.get("tool_calls") else set()
        if isinstance(event.get("delta"), dict):
            blocks[str(event.get("index"))] += text_of(event["delta"], "text")
        blocks["response"] += text_of(event, "response")
        if isinstance(event.get("message"), dict) and not event["message"].get("tool_calls"):
            blocks["message"] += text_of(event["message"], "content")
    last = events[-1] if events else {}
    name = next((event["id"] for event in events if isinstance(event.get("id"), str)), None)
    choices = [{} if number in calls else {"text": texts[number]} for number in range(max(texts, default=-1) + 1)]
    content = [{"type": "text", "text": text} for text in blocks.values()]
    return {"id": name, "choices": choices, "content": content, "output": last.get("output")}


def text_of(data: dict[str, Any], name: str) -> str:
    text = data.get(name)
    return text if isinstance(text, str) else ""


def shown_texts(answer: dict[str, Any], number: int) -> Iterator[str]:
    """Yield the texts of one choice: of a completion or chat, of a message, of a response, of Ollama's answers. Calls
    of tools and reasoning are told in other forms than they were written in, so what stands beside them is left out
    too."""
    choices = answer.get("choices")
    if isinstance(choices, list) and number < len(choices) and isinstance(choices[number], dict):
        choice = choices[number]
        message = choice.get("message")
        if isinstance(message, dict) and not message.get("tool_calls") and isinstance(message.get("content"), str):
            yield message["content"]
        if isinstance(choice.get("text"), str):
            yield choice["text"]
    yield text_of(answer, "response")
    if isinstance(said := answer.get("message"), dict) and not said.get("tool_calls"):
        yield text_of(said, "content")
    for block in [*blocks_in(answer.get("content")), *blocks_in(answer.get("output"))]:
        for part in [block, *blocks_in(block.get("content"))]:
            if part.get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
                yield part["text"]


def blocks_in(data: Any) -> list[dict[str, Any]]:
    return [block for block in data if isinstance(block, dict)] if isinstance(data, list) else []
