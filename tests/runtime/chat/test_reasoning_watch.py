# SPDX-License-Identifier: Apache-2.0
"""Reasoning is told apart from tokens as the parser does it from text."""

from pathlib import Path

import pytest
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json
from tokenizers import AddedToken

from pontil.runtime.chat.reasoning_watch import TokenReasoning, closing_ids
from pontil.runtime.grammar.grammar_text import Thought
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

HEAD = "<|channel|>analysis<|message|>"


def tokenizer_in(folder: Path, *markers: str) -> Tokenizer:
    backend = byte_level_tokenizer()
    backend.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    return load_tokenizer(folder)


@pytest.fixture(scope="module", params=[(), ("<think>", "</think>", "<|end|>")], ids=["spelled", "special"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"), *request.param)


@pytest.mark.parametrize(
    ("thought", "text", "inside", "over"),
    [
        (Thought.BEGUN, "", True, False),
        (Thought.BEGUN, "so it is</thin", True, False),
        (Thought.BEGUN, "so</think>", False, True),
        (Thought.BEGUN, "so</think>yes <think>", False, True),
        (Thought.POSSIBLE, "", False, False),
        (Thought.POSSIBLE, "\n <thi", False, False),
        (Thought.POSSIBLE, "\n <think>hé", True, False),
        (Thought.POSSIBLE, "no <think>", False, True),
        (Thought.MESSAGE, HEAD + "hm", True, False),
        (Thought.MESSAGE, HEAD + "hm<|end|>", False, False),
        (Thought.MESSAGE, HEAD + "hm<|end|><|start|>assistant" + HEAD, True, False),
        (Thought.MESSAGE, "<|channel|>final<|message|>yes", False, False),
    ],
)
def test_reasoning_is_told_apart(tokenizer: Tokenizer, thought: Thought, text: str, inside: bool, over: bool) -> None:
    watch = TokenReasoning(tokenizer, thought)
    for token in tokenizer.encode(text, add_special_tokens=False):
        watch.feed(token)
    assert (watch.inside, watch.over) == (inside, over)


def test_the_marker_is_spelled_where_it_is_no_token(tokenizer: Tokenizer) -> None:
    for thought, marker in ((Thought.BEGUN, "</think>"), (Thought.MESSAGE, "<|end|>")):
        ids = closing_ids(tokenizer, thought)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == marker
        assert (len(ids) == 1) is (tokenizer.token_id(marker) is not None)
