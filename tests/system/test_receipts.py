# SPDX-License-Identifier: Apache-2.0
"""Receipts of a real launch hold when `pontil verify` computes them again, without the server."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from served import Served

from pontil.launcher.cli import cli
from pontil.launcher.keys.receipt_key import receipt_seed
from pontil.launcher.options.options import read_environment
from pontil.runtime.receipts.signing import ReceiptSigner

STORY = "The old lighthouse keeper climbed the stairs every night, and every night the sea told him a little more. "
WORDS = {"regex": "[a-z ]{9,30}"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": STORY, "max_tokens": 12, "temperature": 0.8, "n": 2}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": STORY}], "max_tokens": 20}),
    "stream": ("/v1/completions", {"prompt": STORY * 20, "max_tokens": 9, "stream": True}),
    "structured": ("/v1/completions", {"prompt": STORY, "max_tokens": 20, "structured_outputs": WORDS}),
}


def verified(served: Served, folder: Path, name: str, *words: str) -> Result:
    """Ask for an answer with a receipt, and check it by the launch's key."""
    path, body = ASKED[name]
    reply = served.request("POST", path, {"model": "smollm2-135m-instruct"} | body, {"pontil-receipt": "1"})
    text = reply.text()
    assert reply.status == 200, text
    (folder / "answer").write_text(text)
    seed = receipt_seed(None, read_environment().cache_directory, is_needed=True)
    key = ReceiptSigner(bytes.fromhex(str(seed))).public_key.hex()
    return CliRunner().invoke(cli, ["verify", str(folder / "answer"), "--key", key, *words], standalone_mode=False)


def test_an_answer_is_signed_by_the_launchs_key(pair: Served, tmp_path: Path) -> None:
    made = verified(pair, tmp_path, "completion", "--signature-only")
    assert made.return_value == 0 and made.output.count("equal   signed by") == 2, (made.output, made.exception)


@pytest.mark.long
@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_equal_when_it_is_computed_again(pair: Served, tmp_path: Path, name: str) -> None:
    made = verified(pair, tmp_path, name, *(("--ranks", "3") if name == "stream" else ("--batch", "2")))
    assert made.return_value == 0 and "tokens and logits are equal" in made.output, (made.output, made.exception)
