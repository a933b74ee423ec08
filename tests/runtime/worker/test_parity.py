# SPDX-License-Identifier: Apache-2.0
"""An engine's tokens give equal results on every way to the client, called directly or through workers (B13)."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from effort import by_default
from parity import WAYS, InProcess, Outcome, OverSockets, Recorded, Recording, Way, opened, replayed
from tiny_llama import END_ID as EOS

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

PROMPT = list(range(3, 23))


def recorded(
    *draws: list[int], prompt: list[int] = PROMPT, leaves_after: int | None = None, **params: object
) -> Recorded:
    settings = SamplingParams(**({"max_tokens": 40, "seed": 1, "n": len(draws)} | params))  # type: ignore[arg-type]
    return Recorded(prompt, settings, draws, leaves_after)


def known(count: int, cached: int) -> Recorded:
    params = SamplingParams(max_tokens=3, seed=1)
    return Recorded(numbers(count), params, ([5, 6, 7],), shares=True, cached=cached)


def alone(one: Recorded) -> Recording:
    return [{"r": one}]


def numbers(count: int, start: int = 10) -> list[int]:
    return [start + position % 80 for position in range(count)]


# Tokens that the engine draws, by the special case they cover; `t` writes text as tokens.
RECORDINGS: dict[str, Callable[[Callable[[str], list[int]]], Recording]] = {
    "normal": lambda t: alone(recorded([*t("Paris 😀, the city"), EOS])),
    "EOS first": lambda t: alone(recorded([EOS])),
    "EOS second": lambda t: alone(recorded([*t("a"), EOS])),
    "EOS exactly at the budget": lambda t: alone(recorded([*t("abc"), EOS], max_tokens=4)),
    "EOS that is ignored": lambda t: alone(recorded([EOS, *t("abc")], max_tokens=4, ignore_eos=True)),
    "a budget of one": lambda t: alone(recorded(t("a"), max_tokens=1)),
    "a budget of two": lambda t: alone(recorded(t("ab"), max_tokens=2)),
    "the budget inside of a character": lambda t: alone(recorded(t("a😀")[:-1], max_tokens=len(t("a😀")) - 1)),
    "a stop string over several tokens": lambda t: alone(recorded(t("ab<stop>cd"), stop=("<stop>",))),
    "a stop string from the first token on": lambda t: alone(recorded(t("<>cd"), stop=("<>",))),
    "a stop string exactly at the budget": lambda t: alone(recorded(t("ab<>"), stop=("<>",), max_tokens=4)),
    "half a stop string at the budget": lambda t: alone(recorded(t("ab<"), stop=("<>",), max_tokens=3)),
    "a stop string that is shown": lambda t: alone(
        recorded(t("ab<>cd"), stop=("<>",), include_stop_str_in_output=True)
    ),
    "a stop token": lambda t: alone(recorded(t("abc"), stop_token_ids=tuple(t("c")))),
    "token id 0": lambda t: alone(recorded([0, 0, *t("x"), 0], prompt=[0, 5, 0], max_tokens=4, ignore_eos=True)),
    "aborted": lambda t: alone(recorded(numbers(40), leaves_after=7)),
    "aborted at its first token": lambda t: alone(recorded(numbers(40), leaves_after=1)),
    "a prompt in chunks": lambda t: alone(recorded(numbers(9), prompt=numbers(150), max_tokens=9)),
    "prompts around a block": lambda t: [
        {str(length): recorded(numbers(5, length), prompt=numbers(length), max_tokens=5) for length in (1, 15, 16, 17)}
    ],
    "preempted and resumed": lambda t: [
        {name: recorded(numbers(70, at), prompt=numbers(60, at), max_tokens=70) for name, at in (("a", 10), ("b", 30))}
    ],
    # Submitted right after it ended; an aborted one still has frames in transit, and the proxy never uses an id twice.
    "an id that comes back at once": lambda t: [
        {"r": recorded([*t("first"), EOS])},
        {"r": recorded([EOS], prompt=[7])},
        {"r": recorded(t("third"), max_tokens=3)},
        {"r": recorded([*t("fifth"), EOS], prompt=[9] * 33)},
    ],
    "choices": lambda t: alone(recorded([EOS], [*t("ab<>")], t("budget"), numbers(9), max_tokens=5, stop=("<>",))),
    "choices that all end at once": lambda t: alone(recorded([EOS], [EOS], [EOS])),
    "choices of a client that leaves": lambda t: alone(recorded(numbers(40), numbers(40, 20), leaves_after=1)),
    "prompts that are known": lambda t: [{"r": known(40, 0)}, {"r": known(40, 39)}, {"a": known(60, 32)}],
    "what stood in the prompt": lambda t: alone(recorded(numbers(30), prompt=numbers(60), max_tokens=30, logprobs=0)),
    "what nearly stood there": lambda t: alone(recorded(t("abcabd<>abcabc"), prompt=t("xabcabcabd<"), stop=("<>",))),
    "a character said again": lambda t: alone(recorded(t("😀😀😀😀")[:-1] + [EOS], prompt=t("😀😀😀"))),
    "logprobs": lambda t: alone(recorded(t("one"), [EOS], numbers(9), max_tokens=9, stop=("ne",), logprobs=0)),
}
# Ids, text and reason of each choice where they are worth writing down by hand.
EXPECTED: dict[str, list[tuple[int, str, str]]] = {
    "EOS first": [(1, "", "stop")],
    "EOS second": [(2, "a", "stop")],
    "EOS exactly at the budget": [(4, "abc", "stop")],
    "EOS that is ignored": [(4, "abc", "length")],
    "a budget of one": [(1, "a", "length")],
    "a budget of two": [(2, "ab", "length")],
    "the budget inside of a character": [(4, "a\ufffd", "length")],
    "a stop string over several tokens": [(8, "ab", "stop")],
    "a stop string from the first token on": [(2, "", "stop")],
    "a stop string exactly at the budget": [(4, "ab", "stop")],
    "half a stop string at the budget": [(3, "ab<", "length")],
    "a stop string that is shown": [(4, "ab<>", "stop")],
    "a stop token": [(3, "ab", "stop")],
    "choices": [(1, "", "stop"), (4, "ab", "stop"), (5, "budge", "length"), (5, "", "length")],
    "choices that all end at once": [(1, "", "stop")] * 3,
}


# Requests begin, end, share and give way differently on each way. The others are of what is made of tokens.
BY_THE_WAY = {
    "normal", "EOS first", "a stop string over several tokens", "aborted", "a prompt in chunks", "choices",
    "preempted and resumed", "an id that comes back at once", "prompts that are known",
    "what stood in the prompt", "logprobs",
}  # fmt: skip
PAIR = "pair over shm"


def by_way(name: str, ways: Iterable[str]) -> pytest.MarkDecorator:
    """Every recording on every way; without --long on some ways some only, and all by a pair."""
    cases = [*product(ways, RECORDINGS)]
    chosen = {case for case in cases if case[0] == PAIR or case[1] in BY_THE_WAY}
    return pytest.mark.parametrize((name, "name"), by_default(chosen, cases), indirect=[name])


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    with opened(request.param, model, tmp_path_factory.mktemp("way")) as made:
        yield made


@pytest.fixture(scope="module")
def direct(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with opened("in process", model, tmp_path_factory.mktemp("direct")) as made:
        assert isinstance(made, InProcess)
        yield made


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverSockets]:
    with opened("pair over shm", model, tmp_path_factory.mktemp("pair")) as made:
        assert isinstance(made, OverSockets)
        yield made


def check(tokenizer: Tokenizer, one: Recorded, told: Outcome) -> None:
    """Check what holds of every outcome by itself."""
    for choice, drawn in enumerate(one.draws):
        ids = told.ids[choice]
        assert ids == told.delivered[choice] == drawn[: len(ids)]
        assert told.counts[choice] == len(ids)
        assert len(told.logprobs[choice]) == (len(ids) if one.params.logprobs is not None else 0)
        if not one.params.stop and not one.params.stop_token_ids and told.end is not None:
            assert told.texts[choice] == tokenizer.decode(ids)
    assert told.usage == Usage(len(one.prompt), sum(map(len, told.ids)), one.cached) and told.disputed == 0
    if one.leaves_after is None:
        assert told.end == (told.reasons[0], told.usage) and len(told.reasons) == one.params.n
    else:
        assert told.end is None and max(map(len, told.ids)) == one.leaves_after


@by_way("way", WAYS)
def test_every_way_gives_equal_results_field_by_field(way: Way, direct: InProcess, name: str) -> None:
    tokenizer = direct.machine.tokenizer
    recording = RECORDINGS[name](lambda text: tokenizer.encode(text, False))
    told = way.play(recording)
    assert told == direct.play(recording)
    for round_, outcomes in zip(recording, told, strict=True):
        for request, one in round_.items():
            check(tokenizer, one, outcomes[request])
    if name in EXPECTED:
        (only,) = told[0].values()
        found = [(len(only.ids[choice]), only.reasons[choice]) for choice in sorted(only.reasons)]
        assert found == [(count, reason) for count, _, reason in EXPECTED[name]]
        assert [text or only.texts[choice] for choice, (_, text, _) in enumerate(EXPECTED[name])] == only.texts


PLAIN = [name for name in RECORDINGS if name not in ("an id that comes back at once", "prompts that are known")]


@pytest.mark.parametrize("name", [name for name in PLAIN if not name.startswith("aborted") and "leaves" not in name])
def test_the_order_of_the_two_workers_frames_changes_nothing(pair: OverSockets, direct: InProcess, name: str) -> None:
    """Frames of one worker keep their order; those of the prefill worker come first, or last of all. All come twice."""
    tokenizer = direct.machine.tokenizer
    (round_,) = recording = RECORDINGS[name](lambda text: tokenizer.encode(text, False))
    before, (told,) = pair.handoffs, pair.play(recording)
    prefill = pair.workers[0].incarnation
    assert replayed(round_, pair, lambda frame: frame.sender != prefill) == told
    assert replayed(round_, pair, lambda frame: frame.sender == prefill) == told
    assert pair.handoffs - before == sum(goes_on(one) for one in round_.values()), "the blocks really moved"


def goes_on(one: Recorded) -> bool:
    """Return whether the request continues after prefill's tokens."""
    return one.params.max_tokens > 1 and any(draws[0] != EOS or one.params.ignore_eos for draws in one.draws)


def test_the_small_pool_makes_the_newer_answer_give_way(way: Way) -> None:
    """Guard of the case "preempted and resumed", which would prove nothing in a larger pool."""
    before = way.preemptions
    way.play(RECORDINGS["preempted and resumed"](lambda text: []))
    assert way.preemptions > before


DRAFTING = (*WAYS, f"{PAIR} with a draft model")


@pytest.fixture(scope="module", params=DRAFTING)
def drafting(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    way, _, with_model = request.param.partition(" with ")
    folder = tmp_path_factory.mktemp("drafting")
    with opened(way, model, folder, drafts=5, draft_model=model if with_model else None) as made:
        yield made


@by_way("drafting", DRAFTING)
def test_drafts_change_no_field_on_any_way(drafting: Way, direct: InProcess, name: str) -> None:  # B1, B7, B8
    """Drafts are right, wrong, and right up to an end in the middle of them. A client that leaves may see more."""
    recording = RECORDINGS[name](lambda text: direct.machine.tokenizer.encode(text, False))
    told, plain = drafting.play(recording), direct.play(recording)
    if not any(one.leaves_after for round_ in recording for one in round_.values()):
        assert told == plain
        return
    for round_, outcomes in zip(recording, told, strict=True):
        for request, one in round_.items():
            outcome = outcomes[request]
            assert outcome.end is None and outcome.usage.completion_tokens == sum(map(len, outcome.ids))
            assert max(map(len, outcome.ids)) >= (one.leaves_after or 0)
            assert all(ids == drawn[: len(ids)] for ids, drawn in zip(outcome.ids, one.draws, strict=True))


def test_some_drafts_are_right_and_some_are_not(drafting: Way) -> None:
    """Guard of the test above, which would prove nothing with drafts of one kind only."""
    before = [(engine.drafted, engine.accepted) for engine in drafting.engines]
    drafting.play(alone(recorded(numbers(40), prompt=numbers(60))))
    drafting.play(alone(recorded([10, 12, 11, 14, 10, 12, 13, 11] * 5, prompt=numbers(60))))
    grown = [
        (engine.drafted - drafted, engine.accepted - accepted)
        for engine, (drafted, accepted) in zip(drafting.engines, before, strict=True)
    ]
    drafted, accepted = (sum(column) for column in zip(*grown, strict=True))
    assert drafted > accepted > 30
    assert all(engine.drafted == 0 for engine in drafting.engines[:-1]), "prefill verifies none"
