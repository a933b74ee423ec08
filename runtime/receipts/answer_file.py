# SPDX-License-Identifier: Apache-2.0
"""Files that hold receipts: a receipt by itself, several, an answer that carries them, or the events of a stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.receipts.statement import NoReceipt, Receipt, ReceiptError

DATA = "data:"


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """The receipts of a file, in the order of choices, and the answer that carries them, if it is no stream."""

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
        return AnswerFile(receipts_in(last_event(text)))
    except RecursionError:
        raise NoReceipt("it is nested too deeply for a receipt") from None
    if isinstance(data, dict) and "statement" not in data:
        return AnswerFile(receipts_in(data.get("receipt")), data)
    return AnswerFile(receipts_in(data))


def receipts_in(data: Any) -> list[Receipt]:
    """Return the receipts of this field. Raises ReceiptError."""
    made = [Receipt.from_json(one) for one in (data if isinstance(data, list) and data else [data])]
    return made


def last_event(text: str) -> Any:
    """Return the receipts that the last events of a stream carry; None if none does."""
    for line in reversed(text.splitlines()):
        if line.startswith(DATA):
            try:
                event = json.loads(line.removeprefix(DATA))
            except (ValueError, RecursionError):
                continue
            event = event.get("response", event) if isinstance(event, dict) else {}
            if isinstance(event, dict) and "receipt" in event:
                return event["receipt"]
    return None


def shown_texts(answer: dict[str, Any], number: int) -> Iterator[str]:
    """Yield the texts of one choice: of a completion or chat, of a message, of a response. Calls of tools and reasoning
    are told in other forms than they were written in, so what stands beside them is left out too."""
    choices = answer.get("choices")
    if isinstance(choices, list) and number < len(choices) and isinstance(choices[number], dict):
        choice = choices[number]
        message = choice.get("message")
        if isinstance(message, dict) and not message.get("tool_calls") and isinstance(message.get("content"), str):
            yield message["content"]
        if isinstance(choice.get("text"), str):
            yield choice["text"]
    for block in [*blocks_in(answer.get("content")), *blocks_in(answer.get("output"))]:
        for part in [block, *blocks_in(block.get("content"))]:
            if part.get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
                yield part["text"]


def blocks_in(data: Any) -> list[dict[str, Any]]:
    return [block for block in data if isinstance(block, dict)] if isinstance(data, list) else []
