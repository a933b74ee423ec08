# SPDX-License-Identifier: Apache-2.0
"""The token that ends an answer, which the operator's option leaves out of token ids and logprobs (B2)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import ScriptedWorker, proper

from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit, Tokens

TEXT = "Hello 😀 world"
LOGPROBS = {"complete": {"logprobs": 1}, "chat": {"logprobs": True, "top_logprobs": 1}}


@pytest.fixture(params=[False, True])
def hiding(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    folder = str(tmp_path / "streams")
    with site(tmp_path, tokenizer, hide_end_token=request.param, resume_folder=folder) as made:
        made.pair()
        yield made


def ids_of(answer: HttpAnswer) -> list[int]:
    """Return the token ids of a stream's one choice, or of a whole answer's."""
    if not str(answer.headers["content-type"]).startswith("text/event-stream"):
        return list(answer.json["choices"][0]["token_ids"])
    chunks = [choice for event in answer.events if event != "[DONE]" for choice in event["choices"]]
    return [token for choice in chunks for token in choice.get("token_ids", ())]


def logprobs_of(answer: HttpAnswer) -> int:
    found = answer.json["choices"][0]["logprobs"]
    return len(found["tokens"] if "tokens" in found else found["content"])


@pytest.mark.parametrize("ask", LOGPROBS)
@pytest.mark.parametrize("more", [{}, {"ended": True}, {"skip_special_tokens": False}, {"max_tokens": 5}])
def test_an_end_is_hidden_from_ids_or_shown(hiding: ScriptedSite, ask: str, more: dict[str, Any]) -> None:
    text = hiding.tokenizer.encode(TEXT, False)
    if more.get("ended"):
        more = {"stop_token_ids": [text[2]]}
    made = {"max_tokens": 60, "return_token_ids": True} | more
    answers = [getattr(hiding, ask)(**made, stream=stream) for stream in (False, True)]
    hidden = hiding.proxy.config.hide_end_token and "max_tokens" not in more
    own = text[:3] if "stop_token_ids" in more else [*text, hiding.tokenizer.eos_ids[0]][: made["max_tokens"]]
    assert [ids_of(answer) for answer in answers] == [own[:-1] if hidden else own] * 2
    usage = answers[0].json["usage"]
    assert usage["completion_tokens"] == len(own), "it is generated, and counts"
    shown = answers[0].json["choices"][0]
    assert ("<|im_end|>" in str(shown)) == ("skip_special_tokens" in more and not hidden)
    assert logprobs_of(getattr(hiding, ask)(**made, **LOGPROBS[ask])) == len(own) - hidden
    kept = ids_of(getattr(hiding, ask)(**made, include_stop_str_in_output=True))
    assert kept == own, "who asks to be shown what ended the answer is"


@pytest.mark.parametrize("ended", [False, True])
def test_the_end_of_a_grammar_that_was_cut_is_hidden_too(hiding: ScriptedSite, ended: bool) -> None:
    """The grammar closes the answer for its budget's sake, so that its reason is the budget."""

    def cut(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        for message in proper(worker, submit):
            if isinstance(message, Tokens) and message.finish_reason:
                message = replace(message, finish_reason="length")
            yield message

    text, end = hiding.tokenizer.encode("{}", False), hiding.tokenizer.eos_ids[0]
    for worker in hiding.workers:
        worker.script, worker.answer = cut, text
    asked: dict[str, Any] = {"max_tokens": 9, "return_token_ids": True, "skip_special_tokens": False}
    asked |= {"stop_token_ids": [end]} if ended else {}
    grammar = {"response_format": {"type": "json_object"}}
    for stream in (False, True):
        answer = hiding.complete(**asked, **grammar, stream=stream)
        hidden = hiding.proxy.config.hide_end_token
        assert ids_of(answer) == (text if hidden else [*text, end])
        shown = answer.text if stream else answer.json["choices"][0]["text"]
        assert shown == ("{}" if hidden or ended else "{}<|im_end|>")
        reasons = [
            choice["finish_reason"] for event in answer.events if event != "[DONE]" for choice in event["choices"]
        ]
        assert (reasons[-1] if stream else answer.json["choices"][0]["finish_reason"]) == "length"
    # Without a grammar it is a token like any other, that the client asked for.
    plain = hiding.complete(**{"max_tokens": 3, "return_token_ids": True, "ignore_eos": True})
    assert ids_of(plain) == [*text, end]


def test_an_end_alone_is_an_answer_without_tokens(hiding: ScriptedSite) -> None:
    hiding.workers[0].answer = hiding.workers[1].answer = []
    for stream in (False, True):
        answer = hiding.complete(max_tokens=9, return_token_ids=True, stream=stream)
        assert answer.status == 200
        assert ids_of(answer) == ([] if hiding.proxy.config.hide_end_token else [hiding.tokenizer.eos_ids[0]])


def test_a_stream_that_is_told_again_has_the_same_ids(hiding: ScriptedSite) -> None:
    body = {"prompt": "hi", "max_tokens": 60, "stream": True, "return_token_ids": True}
    first = hiding.ask("POST", "/v1/completions", body, {"pontil-resume": "1"})
    name = str(first.headers["x-pontil-stream"])
    again = hiding.ask("POST", "/v1/completions", {}, {"last-event-id": name})
    assert (again.text, ids_of(again)) == (first.text, ids_of(first))


def test_sglangs_form_has_the_same_ids(hiding: ScriptedSite) -> None:
    asked = {"text": "hi", "sampling_params": {"max_new_tokens": 60}}
    whole = hiding.ask("POST", "/generate", asked)
    streamed = hiding.ask("POST", "/generate", asked | {"stream": True})
    text = hiding.tokenizer.encode(TEXT, False)
    ends = [] if hiding.proxy.config.hide_end_token else [hiding.tokenizer.eos_ids[0]]
    assert whole.json["output_ids"] == streamed.events[-2]["output_ids"] == text + ends
