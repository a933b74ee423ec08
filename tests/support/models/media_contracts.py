# SPDX-License-Identifier: Apache-2.0
"""The promises about answers to recordings and images, checked at a real launch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result
from media_questions import QUESTIONS, TOKENS, ShownQuestion, ask
from served import Served

from pontil.launcher.cli import cli
from pontil.runtime.receipts.statement import Receipt

if TYPE_CHECKING:
    from tiny_omni import OmniPair

ASKED = {"pontil-receipt": "1"}


def with_receipt(served: Served, question: ShownQuestion, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question.content()}]
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0.8, "seed": 3} | fields
    reply = served.request("POST", "/v1/chat/completions", body, ASKED)
    assert reply.status == 200, reply.text()
    answer: dict[str, Any] = reply.json()
    return answer


def verified(path: Path, answer: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["verify", str(answer), "--model", str(path), *words], standalone_mode=False)


def check_receipts(served: Served, pair: "OmniPair", folder: Path) -> None:
    """Check that a receipt states what was shown, and holds with these files alone; one about a text needs none."""
    question = QUESTIONS["both"]
    answer = with_receipt(served, question, n=2)
    receipts = [Receipt.from_json(one) for one in answer["receipt"]]
    media = receipts[0].media
    assert [one["kind"] for one in media] == ["image", "audio", "image", "audio"] and receipts[1].media == media
    assert answer["choices"] == ask(served, question, n=2, temperature=0.8, seed=3)["choices"]
    (folder / "answer").write_text(json.dumps(answer))
    words = list[str]()
    for number, part in enumerate(part for part in question.parts if isinstance(part, bytes)):
        (folder / str(number)).write_bytes(part)
        words += ["--media", str(folder / str(number))]
    made = verified(pair.path, folder / "answer", "--batch", "2", *words)
    assert made.return_value == 0 and made.output.count("tokens and logits are equal") == 2, (made, made.output)
    swapped = verified(pair.path, folder / "answer", *words[4:6], *words[2:4], *words[:2], *words[6:])
    assert swapped.return_value == 1 and f"{folder}/2 is not the image that the receipt states" in swapped.output
    missing = verified(pair.path, folder / "answer", *words[2:])
    assert "has 4 recordings and images, and here are 3: give the file of each" in str(missing.exception)
    plain = with_receipt(served, ShownQuestion(("hello",)))
    assert "media" not in plain["receipt"]["statement"]
    (folder / "plain").write_text(json.dumps(plain))
    assert verified(pair.path, folder / "plain").return_value == 0
