# SPDX-License-Identifier: Apache-2.0
"""Chats about recordings and images as real processes: the sound of transformers, the same wherever the stages run, and
after kills (E). By default `test_omni.py` asks in text."""

import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from media_contracts import check_lease_after_a_death
from media_questions import QUESTIONS, TOKENS, ask, let_see, spoken
from media_streams import check_killed_proxy
from oracle import settled
from served import Served, launched, wait_for
from spoken import Spoken

if TYPE_CHECKING:
    from tiny_omni import OmniPair

pytestmark = pytest.mark.long
TOGETHER = ("encoder=cpu:0", "thinker=cpu:0", "talker=cpu:0", "code2wav=cpu:0")
SPLIT = ("encoder=cpu:1", "thinker.prefill=cpu:0", "thinker.decode=cpu:1", "talker=cpu:0", "code2wav=cpu:0")
RANKS = ("encoder=cpu:1", "thinker=cpu:0+cpu:1", "talker=cpu:0", "code2wav=cpu:0")
FRAMES = 12
# Alone and together: rows that were lost with the encoder are asked for by a prompt that is computed again.
KILLS = [("encoder:0",), ("prefill:0",), ("decode:0",), ("decode:0", "encoder:0"), ("prefill:0", "encoder:0")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> "OmniPair":
    from tiny_omni import OmniPair, write_tiny_omni

    folder = tmp_path_factory.mktemp("omni")
    pair = OmniPair(write_tiny_omni(folder, talker_positions=400), folder)
    let_see(folder)
    return pair


def options(pair: "OmniPair", places: tuple[str, ...]) -> tuple[str, ...]:
    placed = [word for place in places for word in ("--place", place)]
    fixed = ("--dtype", "float32", "--share-devices", "--disagg", "always", "--restart-attempts", "100")
    return (*placed, "--model", str(pair.path), *fixed)


@pytest.fixture(scope="module")
def site(pair: "OmniPair", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with launched(tmp_path_factory.mktemp("site"), *options(pair, SPLIT)) as served:
        yield served


def test_images_are_answered_in_the_sound_of_transformers(pair: "OmniPair", site: Served) -> None:
    """The first frames, which take it seconds. It answers no recording in sound: it raises AttributeError for its
    Talker's audio_config."""
    given = QUESTIONS["images"].for_transformers(pair)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, sound = pair.hugging.generate(
            **given, return_audio=True, speaker="ethan", thinker_max_new_tokens=TOKENS, thinker_eos_token_id=2,
            thinker_do_sample=False, talker_do_sample=False, talker_max_new_tokens=FRAMES,
        )  # fmt: skip
    answer, expected = spoken(site, QUESTIONS["images"]), sound.flatten().numpy()
    assert answer.text == pair.decoded(text[0, given["input_ids"].shape[1] :].tolist())
    heard = np.frombuffer(answer.sound, "<i2")[: len(expected)] / 32767
    assert np.abs(heard - expected).max() < 1e-4


@pytest.mark.parametrize("victims", KILLS, ids="+".join)
@pytest.mark.parametrize("moment", ["at once", "in the text", "in the sound"])
def test_killed_workers_change_nothing(site: Served, victims: tuple[str, ...], moment: str) -> None:
    """E15, E16: rows are made again where they are needed, and what is kept of them is freed."""
    wait_for(lambda: sees(site), 60, "a worker of the encoder")
    before, calm = settled(site), spoken(site, QUESTIONS["both"])
    killed: list[psutil.Process] = []

    def harm() -> None:
        killed.extend(site.living(name) for name in victims)
        for one in killed:
            one.kill()

    def heard(texts: int, sounds: int) -> None:
        if not killed and moment != "at once" and texts and (sounds or moment == "in the text"):
            harm()

    with ThreadPoolExecutor(1) as threads:
        answer: Future[Spoken] = threads.submit(spoken, site, QUESTIONS["both"], heard)
        if moment == "at once":
            wait_for(lambda: answer.done() or site.metric("pontil_runs_running") > 0, 60, "a run")
            harm()
        assert answer.result() == calm
    for name, one in zip(victims, killed, strict=True):
        site.living(name, after=one.pid)
    assert settled(site).free_blocks == before.free_blocks


def test_a_lease_on_images_outlives_its_worker(site: Served) -> None:
    before = settled(site)
    check_lease_after_a_death(site)
    assert settled(site).free_blocks == before.free_blocks


@pytest.mark.parametrize("victims", [(), ("encoder:0",), ("decode:0", "encoder:0")], ids=["proxy", "encoder", "all"])
def test_a_stream_about_images_goes_on_after_its_proxy(site: Served, victims: tuple[str, ...]) -> None:  # A12
    wait_for(lambda: sees(site), 60, "a worker of the encoder")
    before = settled(site)

    def harm() -> None:
        for one in [site.living(name) for name in victims]:
            one.kill()

    check_killed_proxy(site, harm)
    assert settled(site).free_blocks == before.free_blocks


def sees(site: Served) -> bool:
    return "image" in site.get("/v1/models")["data"][0]["input_modalities"]


@pytest.mark.parametrize("places", [TOGETHER, RANKS], ids=["together", "ranks"])
def test_other_placements_say_the_same(pair: "OmniPair", site: Served, places: tuple[str, ...], tmp_path: Path) -> None:
    expected = [ask(site, question)["choices"] for question in QUESTIONS.values()], spoken(site, QUESTIONS["both"])
    with launched(tmp_path, *options(pair, places)) as served:
        found = [ask(served, question)["choices"] for question in QUESTIONS.values()]
        assert (found, spoken(served, QUESTIONS["both"])) == expected
