# SPDX-License-Identifier: Apache-2.0
"""Models that write characters of several tokens: counts, reasons and text at every budget around them (A7, A8).

A tiny model with a SentencePiece vocabulary covers all of it in every run; a grammar makes it write such characters.
Gemma 3 writes rare scripts as single bytes; its file has no chat template, so chats use SmolLM2, whose emoji are
several tokens too.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sentencepiece_file import add_sentencepiece, pieces
from served import Served, cores, launched, wait_for
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama

from pontil.runtime.loaders.builtin import resolve_model
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

CACHE = Path.home() / ".cache" / "pontil"
GEMMA, SMOLLM2, TINY = "gemma3-270m", "smollm2-135m-instruct", "tiny"
LONGEST = 24
BUDGETS = range(1, LONGEST + 1)
TOPOLOGIES: dict[str, tuple[str, ...]] = {"mixed": ("--role", "mixed"), "pair": ()}
PROMPTS = {
    "all at once": "日本𓀀語🫠 日本𓀀語🫠 日本",
    "hieroglyphs": "𓀀𓀁𓀂𓀃 𓀀𓀁𓀂𓀃 𓀀𓀁",
    "Gothic": "𐌰𐌱𐌲𐌳 𐌰𐌱𐌲𐌳 𐌰𐌱𐌲",
    "ideographs": "𠮷野家 𠮷野家 𠮷野",
    "families": "👩‍👩‍👧‍👦 👩‍👩‍👧‍👦 👩‍👩‍",
    "Japanese": "吾輩は猫である。名前は",
}
# In the tiny vocabulary three or four bytes each, except é and 中文, which are tokens there.
SCRIPTS = {"structured_outputs": {"regex": "(𓀀é|🫠語|語中文){9}"}}
CHAT = "Say exactly this and nothing else: 🎉🚀🧑🏿‍🚀🫠🦄🎉🚀🧑🏿‍🚀🫠🦄"


@dataclass(frozen=True)
class Said:
    """A response, whole or streamed."""

    ids: list[int]
    text: str
    finish: str
    completion_tokens: int


@dataclass(frozen=True)
class ByteFallbackSite:
    """One model served in one topology."""

    served: Served
    model: str
    tokenizer: Tokenizer

    def ask(self, prompt: str, budget: int, stream: bool, **options: Any) -> Said:
        asked = {"model": self.model, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | options
        body, path = asked | {"max_tokens": budget, "prompt": prompt}, "/v1/completions"
        if self.model == SMOLLM2:
            body["messages"], path = [{"role": "user", "content": body.pop("prompt")}], "/v1/chat/completions"
        if not stream:
            reply = self.served.request("POST", path, body)
            answer = reply.json()
            assert reply.status == 200, answer
            return said(answer["choices"], answer["usage"])
        events = self.served.stream(path, body)
        return said([piece for event in events for piece in event["choices"]], events[-1]["usage"])

    def ask_all(self, asked: list[tuple[str, int, bool]], **options: Any) -> list[Said]:
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda one: self.ask(*one, **options), asked))

    def at_budgets(self, prompt: str, last: int, **options: Any) -> Iterator[tuple[int, Said]]:
        """Yield the responses at budgets from 1 to the last, whole and streamed."""
        budgets = range(1, last + 1)
        ways = [(prompt, budget, stream) for budget in budgets for stream in (False, True)]
        return zip([budget for _, budget, _ in ways], self.ask_all(ways, **options), strict=True)


def said(pieces: list[dict[str, Any]], usage: dict[str, int]) -> Said:
    """Build it from the one choice of a whole response, or from the pieces of a stream."""
    texts = [piece.get("text") or piece.get("message", piece.get("delta", {})).get("content") or "" for piece in pieces]
    shown = [text for text in texts if text]
    assert not any("\ufffd" in text for text in shown[:-1]), "an incomplete character is shown at the end only"
    ids = [token for piece in pieces for token in piece.get("token_ids") or []]
    return Said(ids, "".join(texts), pieces[-1]["finish_reason"], usage["completion_tokens"])


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByteFallbackSite]:
    """One launch at a time: two workers need both cores. A single worker gets one core, as each of two does: on a busy
    machine its threads would wait for each other longer than the proxy waits for it."""
    model, topology = request.param
    folder = tmp_path_factory.mktemp(topology)
    place = str(write_tiny(folder)) if model == TINY else model
    started: AbstractContextManager[Served]
    if (model, topology) == (SMOLLM2, "pair"):
        started = nullcontext(request.getfixturevalue("pair"))
    else:
        started = launched(folder, *TOPOLOGIES[topology], "--model", place)
    with cores(1 if topology == "mixed" else 2), started as served:
        yield ByteFallbackSite(served, model, load_tokenizer(resolve_model(place, CACHE), CACHE))
        if topology == "pair":
            # A heartbeat tells of it.
            wait_for(lambda: served.metric("pontil_kv_transfer_bytes_total") > 0, 60, "the count of bytes")
        else:
            assert served.metric("pontil_kv_transfer_bytes_total") == 0
        assert served.metric("pontil_counts_disputed_total") == served.metric("pontil_counts_clamped_total") == 0


def write_tiny(folder: Path) -> Path:
    """Write a GGUF file of fixed random weights, whose vocabulary has a token for each byte."""
    config = write_tiny_llama(folder / "hf", vocab_size=len(pieces(gemma=False)))
    return write_tiny_gguf(folder / f"{TINY}.gguf", folder / "hf", config, vocabulary=add_sentencepiece)


of_tiny = pytest.mark.parametrize(
    "site",
    [pytest.param((TINY, topology), marks=pytest.mark.long) for topology in ("mixed", "pair")],
    ids="-".join,
    indirect=True,
)
# Real models only with --long: two starts of the larger one take a minute, and what a character of several tokens is
# does not depend on the weights. Of byte pairs tests/runtime/tokenizer and tests/http have such by default.
of_gemma = pytest.mark.parametrize(
    "site",
    [pytest.param((GEMMA, topology), marks=pytest.mark.long) for topology in ("mixed", "pair")],
    ids="-".join,
    indirect=True,
)
of_smollm2 = pytest.mark.parametrize(
    "site",
    [pytest.param((SMOLLM2, topology), marks=pytest.mark.long) for topology in TOPOLOGIES],
    ids="-".join,
    indirect=True,
)


def check_every_budget(one: ByteFallbackSite, prompt: str, **options: Any) -> Said:
    """Check that every budget gives a prefix of the longest response, with reason "length"; return the longest."""
    longest = one.ask(prompt, LONGEST, False, **options)
    assert len(longest.ids) == LONGEST
    for budget, answer in one.at_budgets(prompt, LONGEST, **options):
        ids = longest.ids[:budget]
        assert answer == Said(ids, one.tokenizer.decode(ids), "length", budget)
    return longest


def check_stops(one: ByteFallbackSite, prompt: str, longest: Said, stop: str, **options: Any) -> None:
    """Check a stop string of several tokens before, at and behind every budget; exactly at the budget, the reason is a
    stop (A6)."""
    decode = one.tokenizer.decode
    ended = next(count for count in BUDGETS if stop in decode(longest.ids[:count]))
    assert 1 < ended < LONGEST
    for budget, answer in one.at_budgets(prompt, ended + 2, stop=[stop], **options):
        ids = longest.ids[: min(budget, ended)]
        reason = "stop" if ended <= budget else "length"
        assert answer == Said(ids, decode(ids).split(stop)[0], reason, len(ids))


def check_stop_tokens(one: ByteFallbackSite, prompt: str, longest: Said, place: int, **options: Any) -> None:
    """Check a stop token inside a character: it is counted and not shown, and leaves the character incomplete."""
    stop = longest.ids[place]
    ended = longest.ids.index(stop) + 1
    for budget, answer in one.at_budgets(prompt, ended + 2, stop_token_ids=[stop], **options):
        ids = longest.ids[: min(budget, ended)]
        reason = "stop" if ended <= budget else "length"
        assert answer == Said(ids, one.tokenizer.decode(ids[:-1] if reason == "stop" else ids), reason, len(ids))


def is_byte(one: ByteFallbackSite, token: int) -> bool:
    return str(one.tokenizer.backend.id_to_token(token)).startswith("<0x")


@of_tiny
def test_a_tiny_model_writes_characters_byte_by_byte(
    site: ByteFallbackSite, tiny_answers: list[Said]
) -> None:  # A7, A8
    """The same at every budget, in one worker and with a handoff."""
    longest = check_every_budget(site, "hello world", **SCRIPTS)
    texts = [site.tokenizer.decode(longest.ids[:budget]) for budget in BUDGETS]
    assert sum(is_byte(site, token) for token in longest.ids) > LONGEST / 2
    assert sum(text.endswith("\ufffd") for text in texts) > 5, "many budgets end inside of a character"
    whole = next(character for character in longest.text if len(character.encode()) > 2)
    check_stops(site, "hello world", longest, whole, **SCRIPTS)
    check_stop_tokens(site, "hello world", longest, 2, **SCRIPTS)
    tiny_answers.append(longest)
    assert tiny_answers[0] == longest


@pytest.fixture(scope="module")
def tiny_answers() -> list[Said]:
    """Responses, one for each topology."""
    return []


@of_gemma
def test_bytes_of_characters_are_counted_one_by_one(site: ByteFallbackSite) -> None:
    prompt = PROMPTS["all at once"]
    longest = check_every_budget(site, prompt)
    assert [is_byte(site, token) for token in longest.ids[:7]] == [True] * 4 + [False] * 3
    assert longest.text.startswith("𓀀語🫠") and longest.text.endswith("\ufffd")
    check_stops(site, prompt, longest, "𓀀")
    check_stop_tokens(site, prompt, longest, 2)


@of_gemma
def test_answers_do_not_depend_on_the_topology(site: ByteFallbackSite, longest_answers: dict[str, Said]) -> None:
    asked = [(prompt, LONGEST, stream) for prompt in PROMPTS.values() for stream in (False, True)]
    for (prompt, _, _), answer in zip(asked, site.ask_all(asked), strict=True):
        assert answer == longest_answers.setdefault(prompt, answer)
        assert answer.text == site.tokenizer.decode(answer.ids)


@pytest.fixture(scope="module")
def longest_answers() -> dict[str, Said]:
    """Responses of the first topology, by prompt."""
    return {}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PROMPTS if name != "all at once"])
@of_gemma
def test_every_script_at_every_budget(site: ByteFallbackSite, name: str) -> None:
    longest = check_every_budget(site, PROMPTS[name])
    check_stops(site, PROMPTS[name], longest, longest.text[1:3])
    check_stop_tokens(site, PROMPTS[name], longest, 3)


@pytest.mark.long
@of_gemma
def test_choices_that_were_drawn_are_counted_apart(site: ByteFallbackSite) -> None:
    for budget in BUDGETS:
        body = {"model": GEMMA, "prompt": PROMPTS["all at once"], "max_tokens": budget, "n": 3, "temperature": 0.9}
        reply = site.served.request("POST", "/v1/completions", body | {"seed": 5, "return_token_ids": True})
        answer = reply.json()
        for choice in answer["choices"]:
            ids = choice["token_ids"]
            assert choice["text"] == site.tokenizer.decode(ids)
            assert len(ids) == budget if choice["finish_reason"] == "length" else len(ids) <= budget
        assert answer["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in answer["choices"])


@of_smollm2
def test_chats_with_characters_of_several_tokens(site: ByteFallbackSite) -> None:
    longest = check_every_budget(site, CHAT)
    texts = [site.tokenizer.decode(longest.ids[:budget]) for budget in BUDGETS]
    assert sum(text.endswith("\ufffd") for text in texts) > 5, "many budgets end inside of a character"
