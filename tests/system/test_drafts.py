# SPDX-License-Identifier: Apache-2.0
"""Repeated text, a draft model and a draft layer guess for real launches of every shape: the answers are those without,
also when workers are killed.

By default tests/runtime/worker/test_drafts.py, test_draft_layers.py and test_draft_models.py compare pairs that guess
with workers that do not, and tests/world kills workers at any point."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from disturbed import MODEL, OPTIONS, DisturbedSite, bodies
from served import ROOT, launched, wait_for
from streams import Streams

DRAFTING = ROOT / "tests" / "support" / "fakes" / "drafting_launch.py"
pytestmark = pytest.mark.long
TOKENS = 100
PAIR = ("--share-devices", "--prefill", "cpu:0", "--decode", "cpu:1")
MIXED = ("--role", "mixed", "--mixed", "cpu:0")
Answers = list[tuple[Any, ...]]


@pytest.fixture(scope="module", params=["deepseek", "hybrid"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DeepSeek V3 or Qwen3-Next with an MTP layer. The library that writes it is imported here: listing these
    tests, as every process does, should not take its time."""
    from tiny_draft_layers import write_mtp_hybrid, write_mtp_model

    folder = tmp_path_factory.mktemp("model") / "tiny"
    (write_mtp_hybrid if request.param == "hybrid" else write_mtp_model)(folder)
    return folder


def options(model: Path) -> tuple[str, ...]:
    return ("--model", str(model), "--served-model-name", MODEL, *OPTIONS, "--kv-cache-memory", "32MiB")


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answers of one worker that guesses nothing."""
    with launched(tmp_path_factory.mktemp("plain"), *MIXED, *options(model)) as served:
        told = Streams(served, bodies("plain", TOKENS)).finish()
        assert served.metric('pontil_spec_decode_num_draft_tokens_total{worker="mixed:0"}') == 0
    assert all(one.done and one.error is None for one in told)
    return [one.answer for one in told]


# The model itself as its draft model is right where it guesses, and text that only seems to repeat is not.
KINDS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "lookup": lambda model: (),
    "draft model": lambda model: ("--speculative-model", str(model)),
    "draft layer": lambda model: ("--speculative-model", "mtp"),
}

# Recurrent layers guess for no other model.
of_any_kind = pytest.mark.parametrize(
    ("model", "kind"), [*(("deepseek", kind) for kind in KINDS), ("hybrid", "draft layer")], indirect=["model"]
)


@contextmanager
def drafting(folder: Path, model: Path, kind: str, shape: tuple[str, ...], plain: Answers) -> Iterator[DisturbedSite]:
    """A launch that guesses, with the answers of one that does not; some guesses are right and some are wrong."""
    more = (*KINDS[kind](model), "--speculative-tokens", "4")
    with launched(folder, *shape, *options(model), *more, app=DRAFTING) as served:
        site = DisturbedSite(served, TOKENS, is_real=False)
        assert len(site.answers) == len(plain)
        for asked, answer, expected in zip(bodies("", TOKENS), site.answers, plain, strict=True):
            assert answer == expected, asked
        series = 'pontil_spec_decode_num_{}_tokens_total{{worker="%s"}}' % ("mixed:0" if shape is MIXED else "decode:0")
        guessed, right = series.format("draft"), series.format("accepted")
        wait_for(lambda: served.metric(guessed) > served.metric(right) > 0, 60, "guesses, some of them right")
        yield site


@of_any_kind
def test_a_pair_answers_as_without_drafts_through_kills(
    tmp_path: Path, model: Path, plain: Answers, kind: str
) -> None:  # B1, B7, C16
    with drafting(tmp_path, model, kind, PAIR, plain) as site:
        assert any(site.moves_streams_of("decode:0", 8) for _ in range(4))


@of_any_kind
def test_more_kills_change_nothing_either(tmp_path: Path, model: Path, plain: Answers, kind: str) -> None:
    with drafting(tmp_path, model, kind, PAIR, plain) as site:
        for tokens in (0, 1, 12):
            site.survives(site.kills("decode:0", tokens), "decode:0")
            site.survives(site.kills("prefill:0", tokens), "prefill:0")

        def both(streams: Streams) -> None:
            site.kills("decode:0", 3)(streams)
            site.kill("prefill:0")

        site.survives(both, "decode:0", "prefill:0")


@of_any_kind
def test_one_worker_answers_as_without_drafts_through_kills(
    tmp_path: Path, model: Path, plain: Answers, kind: str
) -> None:
    with drafting(tmp_path, model, kind, MIXED, plain) as site:
        site.survives(site.kills("mixed:0", 0), "mixed:0")
        assert any(site.moves_streams_of("mixed:0", 8) for _ in range(4))
