# SPDX-License-Identifier: Apache-2.0
"""A sequence's samples are a function of its tokens, parameters and seed, in any batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from effort import by_default, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB, build, drain, reference, rig, sequence
from torch import Tensor

from pontil.runtime.engine.sampling.sampler import plan_draws, sample_rows
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.token_rules import TokenCounts
from pontil.runtime.sampling_params import SamplingParams

# Kinds of requests, to be mixed in a batch.
KINDS: list[dict[str, Any]] = [
    {}, {"logprobs": 3}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 9, "logprobs": 0},
    {"temperature": 1.2, "top_p": 0.8}, {"temperature": 1.0, "min_p": 0.1}, {"n": 5, "temperature": 1.0},
    {"presence_penalty": 0.7, "frequency_penalty": -0.4}, {"repetition_penalty": 1.4, "temperature": 1.0, "n": 3},
    {"logit_bias": ((5, 4.0), (9, -100.0)), "temperature": 1.0}, {"min_tokens": 6, "temperature": 1.5},
    {"bad_token_ids": tuple(range(40)), "temperature": 1.0, "n": 2}, {"allowed_token_ids": (3, 5, 70), "n": 2},
    {
        "temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "presence_penalty": 0.3,
        "repetition_penalty": 1.1, "min_tokens": 20, "logprobs": 5, "logit_bias": ((7, 2.0),),
    },
]  # fmt: skip


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def made(number: int, seed: int, output: int = 0, vocabulary: int = VOCAB) -> Sequence:
    words = torch.randint(0, vocabulary, (30 + output,), generator=torch.Generator().manual_seed(seed)).tolist()
    one = sequence(str(number), words[:30], 30, seed=seed, **KINDS[number % len(KINDS)])
    one.output += words[30:]
    one.branch.choice = 1 if output else 0
    one.stop_token_ids = frozenset({2, 11})
    return one


@settings(max_examples=examples(10, 25), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([VOCAB, 5003]), st.integers(0, 9), st.randoms(use_true_random=False))
def test_company_changes_nothing(seed: int, vocabulary: int, output: int, order: Any) -> None:
    logits = random(32, vocabulary, seed=seed)
    rows = [*range(32)]
    order.shuffle(rows)
    together = sample_rows(logits[rows], [made(row, seed + row, output, vocabulary) for row in rows])
    for row in rows[:8]:
        alone = sample_rows(logits[row : row + 1], [made(row, seed + row, output, vocabulary)])
        company = [one for one in together if one.sequence.id == str(row)]
        assert [(one.choice, one.tokens, one.logprobs) for one in alone] == [
            (one.choice, one.tokens, one.logprobs) for one in company
        ]


def test_choices_drawn_together_are_those_drawn_one_by_one() -> None:
    logits = random(1, VOCAB)
    first = made(6, 3)
    together = sample_rows(logits, [first])
    assert [one.choice for one in together] == [0, 1, 2, 3, 4]
    assert len({one.tokens[0] for one in together}) > 1
    for one in together[1:]:
        fork = made(6, 3)
        fork.branch.choice, fork.branch.forked = one.choice, True
        (alone,) = sample_rows(logits, [fork])
        assert (alone.choice, alone.tokens) == (one.choice, one.tokens)
    first.output += together[0].tokens
    first.branch.forked = True
    assert [one.choice for one in sample_rows(logits, [first])] == [0]


@pytest.mark.parametrize("output", by_default({3}, [1, 3, 8]))
@pytest.mark.parametrize(
    "number", [number for number, kind in enumerate(KINDS) if not sequence("", [1], **kind).params.penalizes]
)
def test_after_drafts_tokens_are_drawn_as_if_these_were_known(number: int, output: int) -> None:
    """Each position has its own random number and its own mask; a stop would often be the likeliest token, where it may
    be drawn."""
    for seed in range(examples(6, 20)):
        logits = random(7, VOCAB, seed=seed)
        logits[:, 2] += 8 * (seed % 2)
        one = made(number, seed, output)
        one.branch.forked = True
        steps = []
        for row in range(7):
            steps += sample_rows(logits[row : row + 1], [one])
            one.output += steps[-1].tokens
        tokens = [token for step in steps for token in step.tokens]
        for right in range(7):
            fresh = made(number, seed, output)
            fresh.branch.forked = True
            draft = (*tokens[:right], *((token + 1) % VOCAB for token in tokens[right:6]))
            (together,) = sample_rows(logits, [fresh], [draft])
            assert together.tokens == tokens[: right + 1] and together.count == right + 1 and together.drafted == 6
            assert together.logprobs == [entry for step in steps[: right + 1] for entry in step.logprobs]


def edit(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """Return the logits, float32 [rows, vocabulary], as the sequences' parameters change them."""
    return plan_draws(sequences, [()] * len(sequences), logits.shape[1]).edits()[0].apply(logits)


def test_logits_are_read_only_and_untouched_where_nothing_is_asked() -> None:
    logits = random(len(KINDS), VOCAB)
    before = logits.clone()
    sample_rows(logits, [made(number, 1, 3) for number in range(len(KINDS))])
    assert torch.equal(logits, before)
    assert edit(logits, [made(0, 1, 3), made(4, 1, 3)]) is not None
    plain = [made(number, 1, 3) for number in (0, 2, 4)]
    assert edit(logits[:3], plain).data_ptr() == logits.data_ptr()
    assert all(one.rules.state is None for one in plain)


def test_edits_are_those_of_transformers() -> None:
    prompt, output = [4, 9, 4, 60], [9, 9, 12]
    logits = random(1, VOCAB)
    one = sequence(
        "a", prompt, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((12, 1.5),),
        bad_token_ids=(8,), min_tokens=4,
    )  # fmt: skip
    one.output, one.stop_token_ids = list(output), frozenset({1})
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    theirs[0, 9] -= 0.5 + 2 * 0.25
    theirs[0, 12] -= 0.5 + 0.25
    theirs = transformers.SequenceBiasLogitsProcessor([[[12], 1.5]])(torch.tensor([output]), theirs)
    theirs = transformers.NoBadWordsLogitsProcessor([[8]])(torch.tensor([output]), theirs)
    theirs = transformers.MinNewTokensLengthLogitsProcessor(4, 4, [1])(torch.tensor([prompt + output]), theirs)
    torch.testing.assert_close(edit(logits, [one]), theirs)
    one.output.append(5)
    assert edit(logits, [one])[0, 1] == logits[0, 1]


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({"allowed_token_ids": (3, 4), "bad_token_ids": (3,)}, {4}),
        ({"allowed_token_ids": (3, 4), "bad_token_ids": (3, 4)}, {3, 4}),
        ({"allowed_token_ids": (2, 3), "min_tokens": 5}, {3}),
        ({"allowed_token_ids": (2,), "min_tokens": 5}, {2}),
        ({"bad_token_ids": tuple(range(1, 10))}, {0}),
        ({"bad_token_ids": tuple(range(10))}, set(range(10))),
        ({"bad_token_ids": (*range(2), *range(3, 10)), "min_tokens": 5}, {2}),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_masks_that_contradict_each_other_yield(
    settings: dict[str, Any], possible: set[int], temperature: float
) -> None:
    logits = random(1, 10) / 5
    drawn = set()
    for seed in range(100):
        one = sequence("a", [1], seed=seed, temperature=temperature, **settings)
        one.stop_token_ids = frozenset({2})
        drawn.add(sample_rows(logits, [one])[0].tokens[0])
    assert drawn == possible if temperature else len(drawn) == 1 and drawn <= possible


@pytest.mark.parametrize("temperature", [5e-324, 6e-46, 1e-38, 1e-6])
def test_a_temperature_next_to_zero_takes_the_likeliest(temperature: float) -> None:
    logits = random(1, VOCAB)
    for seed in range(20):
        one = sequence("a", [1], seed=seed, temperature=temperature, top_p=0.9, top_k=5)
        assert one.params.greedy and sample_rows(logits, [one])[0].tokens == [int(logits.argmax())]


@pytest.mark.parametrize("penalty", by_default({1e-46, 1e-39}, [5e-324, 1e-46, 1e-39, 1e-38, 1e-7]))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(
    "masked", [{"bad_token_ids": (3, 4)}, {"allowed_token_ids": (1, 2)}, {"min_tokens": 5}], ids=str
)
def test_a_repetition_penalty_next_to_zero_breaks_no_mask(
    penalty: float, temperature: float, masked: dict[str, Any]
) -> None:
    """The penalty puts known tokens far above all others: those of them that a mask forbids stay forbidden."""
    logits = random(1, 10)
    logits[0, :6] = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 0.0])
    for seed in range(30):
        one = sequence("a", [0, 1, 3, 4, 5], seed=seed, temperature=temperature, repetition_penalty=penalty, **masked)
        one.stop_token_ids = frozenset({3, 4})
        assert edit(logits, [one]).isnan().sum() == 0
        assert sample_rows(logits, [one])[0].tokens == [1]


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-320}, {"temperature": 2.0, "top_p": 5e-324}, {"temperature": 1e-5, "min_p": 5e-324},
    {"temperature": 2.0, "repetition_penalty": 1e-310}, {"temperature": 1.0, "repetition_penalty": 10.0},
    {"temperature": 1.0, "presence_penalty": -2.0, "frequency_penalty": -2.0},
    {"temperature": 1.0, "presence_penalty": 2.0, "frequency_penalty": 5e-324, "repetition_penalty": 1e-44},
    {"temperature": 1.0, "logit_bias": tuple((token, 100.0) for token in range(4))},
    {"temperature": 1.0, "logit_bias": ((2, -100.0), (3, 100.0), (4, 5e-324)), "repetition_penalty": 1e-40},
]  # fmt: skip
LOGIT = st.floats(width=32, allow_nan=True) | st.sampled_from([torch.inf, -torch.inf, torch.nan, 1e-45, 3.4e38, 0.0])


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    st.lists(LOGIT, min_size=8, max_size=8), st.sets(st.integers(0, 7), min_size=1, max_size=6), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_no_extreme_breaks_a_mask_that_leaves_something(
    logits: list[float], chosen: set[int], only: bool, seed: int
) -> None:
    possible = chosen if only else {*range(8)} - chosen
    masked: dict[str, Any] = {"allowed_token_ids" if only else "bad_token_ids": tuple(sorted(chosen))}
    sequences = [sequence(str(place), [1, 2, 3, 1], seed=seed, **kind, **masked) for place, kind in enumerate(EXTREMES)]
    for one in sequences:
        one.output += [2, 5, 2]
    rows = torch.tensor([logits] * len(sequences))
    for sampled in sample_rows(rows, sequences):
        if any(logits[token] > -torch.inf for token in possible):
            assert sampled.tokens[0] in possible
        assert 0 <= sampled.tokens[0] < 8 and sampled.count == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "temperature" in kind], ids=str)
def test_seeds_draw_from_the_distribution(kind: dict[str, Any]) -> None:
    """Counter-based numbers of many seeds, on logits whose distribution after the edits is known."""
    logits = random(1, 20, seed=4) / 2
    count = examples(2000, 4000)
    kind = {name: value for name, value in kind.items() if name != "bad_token_ids"}
    sequences = [sequence("a", [3, 5], 30, **(kind | {"seed": seed, "n": 1})) for seed in range(count)]
    tokens = torch.tensor([one.tokens[0] for one in sample_rows(logits.expand(count, -1), sequences)])
    seen = torch.bincount(tokens, minlength=20).double()
    params = sequences[0].params
    logits = edit(logits, sequences[:1])
    steps: list[Any] = [transformers.TemperatureLogitsWarper(params.temperature)]
    steps += [transformers.MinPLogitsWarper(params.min_p)] if params.min_p else []
    steps += [transformers.TopKLogitsWarper(min(20, params.top_k))] if params.top_k else []
    steps += [transformers.TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    for step in steps:
        logits = step(None, logits)
    expected = torch.softmax(logits[0].double(), -1) * count
    assert not seen[expected == 0].any()
    large = expected >= 5
    statistic = ((seen - expected) ** 2 / expected)[large].sum()
    freedom = max(1, int(large.sum()) - 1)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 8


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random(1, VOCAB)
    one = made(13, 2, 3)
    (sampled,) = sample_rows(logits, [one])
    expected = logits[0].log_softmax(-1)
    values, ids = expected.sort(descending=True)
    own, *others = sampled.logprobs[0].entries
    assert own == (sampled.tokens[0], expected[sampled.tokens[0]].item(), ids.tolist().index(sampled.tokens[0]) + 1)
    assert others == [(ids[rank].item(), values[rank].item(), rank + 1) for rank in range(5)]
    assert sampled.logprobs[0].to_wire()[0] == list(own)


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=70, unique=True), st.integers(0, 99))
def test_logprobs_of_named_tokens_stand_in_place_of_the_likeliest(named: list[int], seed: int) -> None:
    logits = random(1, VOCAB, seed=seed).repeat(3, 1)
    logits[1] = logits[1].round()
    params = SamplingParams(4, seed, logprobs=3, logprob_token_ids=tuple(named))
    asked = [Sequence(str(row), [1], replace(params, logprobs=row and 3), frozenset()) for row in range(2)]
    other = Sequence("other", [1], SamplingParams(4, seed, logprobs=2), frozenset())
    for row, sampled in enumerate(sample_rows(logits, [*asked, other])):
        (entries,) = (one.entries for one in sampled.logprobs)
        values = logits[row].tolist()
        order = [token for _, token in sorted((-value, token) for token, value in enumerate(values))]
        shown = named if row < 2 else order[:2]
        expected = logits[row].log_softmax(-1)
        assert entries[0][0] == sampled.tokens[0] and sorted(token for token, _, _ in entries[1:]) == sorted(shown)
        assert [rank for _, _, rank in entries[1:]] == sorted(rank for _, _, rank in entries[1:])
        assert all((value, rank) == (expected[token].item(), order.index(token) + 1) for token, value, rank in entries)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)), st.lists(st.integers(0, 20)), st.booleans())
def test_counts_follow_an_output_as_it_grows(prompt: list[int], output: list[int], cuts: list[int], both: bool) -> None:
    counts = TokenCounts(prompt, both, torch.device("cpu"))
    for cut in [*sorted(min(cut, len(output)) for cut in cuts), len(output)]:
        ids, times = counts.follow(output[:cut])
        expected = {token: output[:cut].count(token) for token in [*(prompt if both else []), *output[:cut]]}
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == expected
        assert len(ids) == len(expected)


@pytest.fixture(scope="module")
def model() -> Any:
    return build(reference())


@pytest.mark.parametrize("budget", [256, 33])
def test_prompt_logprobs_are_those_of_transformers(model: Any, budget: int) -> None:
    words = torch.randint(0, VOCAB, (300,), generator=torch.Generator().manual_seed(5)).tolist()
    asks, other = sequence("a", words, 3, prompt_logprobs=2, logprobs=1), sequence("b", words[:9], 3, prompt_logprobs=0)
    engine = rig(model, budget=budget).engine
    for one in (sequence("c", words[:50], 4), asks, other):
        engine.add(one)
    drain(engine)
    with torch.no_grad():
        expected = reference()(torch.tensor([words])).logits[0].log_softmax(-1)
    assert (
        asks.record.prompt_logprobs[0] is None
        and len(asks.record.prompt_logprobs) == 300
        and len(other.record.prompt_logprobs) == 9
    )
    for position, found in enumerate(asks.record.prompt_logprobs[1:], 1):
        assert found is not None
        (token, logprob, rank), first, second = found.entries
        assert token == words[position] and logprob == pytest.approx(expected[position - 1, token].item(), abs=1e-3)
        assert (first[2], second[2]) == (1, 2) and first[1] >= second[1]
        assert (rank == 1) == (first[0] == token)
    assert [len(found.entries) for found in other.record.prompt_logprobs if found] == [1] * 8


def test_prompt_logprobs_are_recorded_once_however_often_the_prompt_is_computed(model: Any) -> None:
    words = list(range(40))
    one = sequence("a", words, 3, prompt_logprobs=1)
    drain_one = rig(model)
    drain_one.engine.add(one)
    drain(drain_one.engine)
    first = list(one.record.prompt_logprobs)
    again = sequence("a", words, 3, prompt_logprobs=1)
    again.record.prompt_logprobs, again.output = list(first[:20]), one.output[:1]
    replay = rig(model, budget=16)
    replay.engine.add(again)
    drain(replay.engine)
    assert again.record.prompt_logprobs == first and again.output == one.output


# Those whose draws depend on the tokens before; the last is of everything together.
@pytest.mark.parametrize(
    "number", by_default({7, 10, 13}, [number for number, kind in enumerate(KINDS) if "n" not in kind])
)
def test_a_replay_goes_on_with_equal_tokens(model: Any, number: int) -> None:
    words = torch.randint(0, VOCAB, (20,), generator=torch.Generator().manual_seed(number)).tolist()

    def fresh() -> Sequence:
        one = sequence("a", words, 25, **KINDS[number])
        one.params = replace(one.params, seed=number)
        return one

    whole, replay = rig(model), rig(model, budget=7)
    whole.engine.add(fresh())
    expected = drain(whole.engine)["a"]
    second = fresh()
    second.output += expected[:11]
    replay.engine.add(second)
    drain(replay.engine)
    assert second.output == expected
