# SPDX-License-Identifier: Apache-2.0
"""Each token's logprobs go with the text that it made, however the answer is split into deltas."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.http.stream.token_parts import TokenParts
from pontil.runtime.chat.answer_part import Content
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.chat.calls.format import HERMES
from pontil.runtime.chat.reasoning_parser import ReasoningParser
from pontil.runtime.chat.tool_call_parser import ToolCallParser
from pontil.runtime.proxy.requests.answer import Delta
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.tokenizer import Tokenizer

WORDS = ("a", "ø", "😀", " ", "\n", "<t", "<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", "x<")
THOUGHT = "<think>\nhm\n</think>\n\n"


def read(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> tuple[str, bytes]:
    """Return the text for the reader, and the bytes of the tokens whose logprobs are with it."""
    parser = ToolCallParser(HERMES, {"f": None})
    tokens = TokenParts(AnswerReader(ReasoningParser(), parser), Detokenizer(tokenizer))
    texts, found = "", []
    detokenizer = Detokenizer(tokenizer)
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        piece = ids[start:end]
        delta = Delta(detokenizer.add(piece), piece, logprobs=[[[token, -1.0, 1]] for token in piece])
        for parts, own in tokens.feed(delta):
            texts += "".join(part.text for part in parts if isinstance(part, Content))
            found += own
    for parts, own in tokens.finish():
        texts += "".join(part.text for part in parts if isinstance(part, Content))
        found += own
    return texts, b"".join(tokenizer.token_bytes(int(entries[0][0])) for entries in found)


@settings(deadline=None)
@given(st.booleans(), st.lists(st.sampled_from(WORDS), max_size=8), st.data())
def test_logprobs_are_those_of_the_text(
    tokenizer: Tokenizer, thinks: bool, words: list[str], data: st.DataObject
) -> None:  # A8
    ids = tokenizer.encode((THOUGHT if thinks else "") + "".join(words), False)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    text, own = read(tokenizer, ids, cuts)
    # A token may begin with a space that belongs to a marker.
    assert "".join(own.decode().split()) == "".join(text.split())
    assert read(tokenizer, ids, []) == (text, own)


def test_tokens_of_a_text_that_was_cut_stay_with_it(tokenizer: Tokenizer) -> None:
    """A stop string took the end of the text, and its tokens came."""
    ids = tokenizer.encode("abcd", False)
    tokens = TokenParts(AnswerReader(None, None), Detokenizer(tokenizer))
    delta = Delta("ab", ids, logprobs=[[[token, -1.0, 1]] for token in ids])
    told = [*tokens.feed(delta), *tokens.finish()]
    assert [len(own) for parts, own in told if parts] == [1, 1] and len(tokens.last) == 2
