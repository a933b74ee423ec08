# SPDX-License-Identifier: Apache-2.0
"""A model of three stages as real processes: the same text and sound wherever its stages run, and after kills (E)."""

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import torch
from effort import by_default, is_long
from linked_questions import check_leaving, check_linked, check_refusals
from media_contracts import check_leases, check_marks, check_receipts
from media_questions import check_answers, check_choices, check_next_turns, check_other_forms, let_see
from media_streams import check_changed_image
from oracle import settled, steady
from picture_origin import PictureOrigin, picture_host
from served import Served, launched, wait_for
from slow_process import SlowProcess
from spoken import Spoken, speak

if TYPE_CHECKING:
    from tiny_omni import OmniPair

from pontil.runtime.proxy.metrics.all_series import CAUSES
from pontil.runtime.stages.graph.catalog import QWEN3_OMNI

TEXT = "the sea was calm"
# Asked of every placement: answers of 1, 2 and more tokens of text, greedy and drawn.
ASKED: list[dict[str, Any]] = [
    *({"max_tokens": tokens, "temperature": 0} for tokens in (1, 2, 3, 9)),
    {"max_tokens": 6, "temperature": 0.8, "seed": 5, "audio": {"voice": "chelsie", "format": "pcm16"}},
]
# Frames that are compared with those of transformers, which takes seconds for so many.
COMPARED = 200 if is_long() else 24
STAGES = {
    "together": ("thinker=cpu:0", "talker=cpu:0", "code2wav=cpu:0"),
    "thinker split": ("thinker.prefill=cpu:0", "thinker.decode=cpu:1", "talker=cpu:0", "code2wav=cpu:1"),
    "talker split": ("thinker=cpu:0", "talker.prefill=cpu:0", "talker.decode=cpu:1", "code2wav=cpu:1"),
    "both split": (
        "thinker.prefill=cpu:0", "thinker.decode=cpu:1", "talker.prefill=cpu:0", "talker.decode=cpu:1",
        "code2wav=cpu:0", "encoder=cpu:1",
    ),
    "thinker of two ranks": ("thinker=cpu:0+cpu:1", "talker=cpu:0", "code2wav=cpu:1"),
    "ranks everywhere": (
        "thinker=cpu:0+cpu:1", "talker.prefill=cpu:0", "talker.decode=cpu:0+cpu:1", "code2wav=cpu:1",
    ),
}  # fmt: skip
PLACED = by_default({"both split"}, STAGES)
# The worker that dies, and the pieces of text and of sound that the client has then: few, as tokens that come together
# may be one piece. By default one: tests/world kills, stops and cuts off the workers of every stage at any point.
WORKERS = ("prefill:0", "decode:0", "talker-prefill:0", "talker-decode:0", "code2wav:0")
MOMENTS = ((0, 0), (1, 0), (1, 1))
KILLS = [
    (worker, moment)
    for worker in WORKERS
    for moment in MOMENTS
    if is_long() or (worker, moment) == ("talker-decode:0", (1, 1))
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> "OmniPair":
    """The only use of transformers here, whose import takes seconds of every process that collects these tests."""
    from tiny_omni import OmniPair, write_tiny_omni

    folder = tmp_path_factory.mktemp("omni")
    let_see(folder)
    return OmniPair(write_tiny_omni(folder, talker_positions=400), folder)


def options(pair: "OmniPair", placed: str) -> tuple[str, ...]:
    places = [word for place in STAGES[placed] for word in ("--place", place)]
    return (*places, "--model", str(pair.path), "--dtype", "float32", "--share-devices", "--disagg", "always")


def answers(served: Served) -> list[Spoken]:
    with ThreadPoolExecutor(len(ASKED)) as threads:
        return list(threads.map(lambda asked: speak(served, TEXT, **asked), ASKED))


@pytest.fixture(scope="module")
def host() -> Iterator[PictureOrigin]:
    """The one host from which the site fetches images."""
    with picture_host(PictureOrigin()) as origin:
        yield origin


@pytest.fixture(scope="module")
def site(pair: "OmniPair", host: PictureOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both decoders split over two workers."""
    fetching = ("--allowed-media-domains", f"127.0.0.1:{host.port}")
    with launched(tmp_path_factory.mktemp("site"), *options(pair, "both split"), *fetching) as served:
        yield served


@pytest.fixture(scope="module")
def alone(pair: "OmniPair", tmp_path_factory: pytest.TempPathFactory) -> list[Spoken]:
    """The answers of stages that are not split."""
    with launched(tmp_path_factory.mktemp("alone"), *options(pair, "together")) as served:
        return answers(served)


def test_the_answer_is_that_of_transformers(pair: "OmniPair", alone: list[Spoken]) -> None:
    """Greedy: the text, and the sound of the first frames to the precision of 16 bits."""
    chat = f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    prompt = torch.tensor([pair.encoded(chat)])
    for asked, spoken in zip(ASKED[1:4], alone[1:4], strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text, sound = pair.hugging.generate(
                prompt, attention_mask=torch.ones_like(prompt), return_audio=True, speaker="ethan",
                thinker_max_new_tokens=asked["max_tokens"], thinker_eos_token_id=2, thinker_do_sample=False,
                talker_do_sample=False, talker_max_new_tokens=COMPARED,
            )  # fmt: skip
        assert len(text[0]) - prompt.shape[1] == spoken.usage["completion_tokens_details"]["text_tokens"]
        assert pair.decoded(text[0, prompt.shape[1] :].tolist()) == spoken.text
        heard = np.frombuffer(spoken.sound, "<i2")[: sound.numel()] / 32767
        assert np.abs(heard - sound.flatten().numpy()).max() < 1e-4


def test_recordings_and_images_are_answered_as_by_transformers(pair: "OmniPair", site: Served) -> None:
    """Their rows are made by a stage of encoders, the prompt by one worker and the answer by another. `test_media.py`
    has sound, kills and other placements."""
    check_answers(site, pair)
    settled(site)


def test_a_next_turn_finds_what_was_seen_and_heard(site: Served) -> None:
    check_next_turns(site)
    settled(site)


def test_several_answers_about_what_was_seen_and_heard(site: Served) -> None:
    check_choices(site)
    settled(site)


def test_an_answer_about_images_has_a_receipt(pair: "OmniPair", site: Served, tmp_path: Path) -> None:
    check_receipts(site, pair, tmp_path)
    settled(site)


def test_a_prefix_with_images_is_leased(site: Served) -> None:
    before = settled(site)
    check_leases(site)
    check_marks(site)
    assert settled(site).free_blocks == before.free_blocks


def test_responses_and_messages_show_images_as_chats_do(site: Served) -> None:
    check_other_forms(site)
    settled(site)


def test_images_on_the_network_are_shown_as_those_that_are_sent(site: Served, host: PictureOrigin) -> None:
    check_linked(site, host)
    check_refusals(site, host)
    check_leaving(site, host)
    check_changed_image(site, host)
    settled(site)


@pytest.mark.parametrize("placed", PLACED)
def test_every_placement_says_the_same(
    pair: "OmniPair", alone: list[Spoken], site: Served, placed: str, tmp_path: Path
) -> None:
    """E16: text, all codes and all samples; also when a rank of a later stage dies."""
    if placed == "both split":
        assert answers(site) == alone
        settled(site)
        return
    with launched(tmp_path, *options(pair, placed)) as served:
        assert answers(served) == alone
        settled(served)
        if placed == "ranks everywhere":  # H7
            survives(served, alone[3], "talker-decode:0", (1, 0), rank=1)


@pytest.mark.parametrize(("worker", "moment"), KILLS)
def test_a_killed_worker_of_any_stage_changes_nothing(
    site: Served, alone: list[Spoken], worker: str, moment: tuple[int, int]
) -> None:
    """E15, E16: no sound twice and none missing, everything is freed, and the books balance."""
    survives(site, alone[3], worker, moment)


def survives(served: Served, right: Spoken, worker: str, moment: tuple[int, int], rank: int = 0) -> None:
    """Kill a rank of a worker when the client has so many pieces of the answer."""
    before = settled(served)
    victim = served.living(worker, rank)
    killed: list[psutil.Process] = []

    def harm(texts: int, sounds: int) -> None:
        if not killed and texts >= moment[0] and sounds >= moment[1]:
            killed.append(victim)
            victim.kill()

    if moment == (0, 0):
        harm(0, 0)
    assert speak(served, TEXT, harm, **ASKED[3]) == right
    assert killed == [victim], "the worker died while the answer was on its way"
    served.living(worker, rank, after=victim.pid)
    assert settled(served).free_blocks == before.free_blocks


@pytest.mark.long
def test_a_slow_stage_stops_the_one_before_it(site: Served) -> None:
    """E13: the Thinker rests when the Talker is a window behind, and keeps no more items meanwhile. By default
    tests/runtime/engine/test_streamed_rows.py and tests/runtime/stages hold that, and tests/world has windows of 8
    items."""
    asked: dict[str, Any] = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}
    calm = speak(site, TEXT, **asked)
    before = settled(site)
    # On a slow machine the Talker stands still for so long that it is taken for dead. A later attempt reads the items
    # again, and is as far behind as it then is: that shows nothing, and is tried again.
    assert any(stops_the_one_before_it(site, asked, calm) for _ in range(5)), "the Talker was given up each time"
    assert settled(site).free_blocks == before.free_blocks


def failovers(site: Served) -> float:
    return sum(site.metric(f'pontil_failovers_total{{cause="{cause}"}}') for cause in CAUSES)


def stops_the_one_before_it(site: Served, asked: dict[str, Any], calm: Spoken) -> bool:
    """Return whether one attempt of the slow stage did all of the answer, which then was as it has to be."""
    window, told, tried = QWEN3_OMNI.connection("thinker/talker/states").capacity, 0, failovers(site)

    def stop(texts: int, sounds: int) -> None:
        nonlocal told
        if not told:
            slow.stop()
        told = texts

    def thinker(name: str) -> float:
        return site.metric(f'pontil_worker_{name}{{worker="decode:0"}}')

    def held() -> tuple[float, float, int]:
        return thinker("stream_items_ahead"), thinker("stream_kept_bytes"), told

    with ThreadPoolExecutor(1) as threads, SlowProcess(site.living("talker-decode:0")) as slow:
        answer = threads.submit(speak, site, TEXT, stop, **asked)
        wait_for(lambda: slow.has_ended or thinker("streams_full") == 1, 60, "a producer that rests")
        ahead, kept, said = steady(held, "a producer that stays at rest")
        slow.crawl()
        seen = [ahead]

        def advances() -> bool:
            seen.append(thinker("stream_items_ahead"))
            return told > said + 3

        wait_for(advances, 120, "a producer that goes on as its consumer does")
        rested = ahead == window and kept > 0 and said < asked["max_tokens"] and not answer.done()
    assert answer.result() == calm
    if failovers(site) > tried:
        return False
    assert rested and max(seen) <= window
    return True


def test_a_client_that_leaves_frees_every_stage(site: Served) -> None:
    """E15: nothing of the run is left. That no stage makes anything after it was told is in tests of workers."""
    before = settled(site)

    class Left(Exception):
        pass

    def leave(texts: int, sounds: int) -> None:
        if sounds:
            raise Left

    with pytest.raises(Left):
        speak(site, TEXT, leave, **ASKED[3])
    assert settled(site).free_blocks == before.free_blocks
    assert site.metric("pontil_runs_running") == 0
