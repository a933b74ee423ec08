# SPDX-License-Identifier: Apache-2.0
"""A second model of several stages as real processes: a text is spoken by tokens that are codes of sound (E)."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from oracle import settled
from served import Served, launched
from slow_process import SlowProcess
from tiny_orpheus import TinyOrpheus, orpheus_tokenizer, write_tiny_orpheus

from pontil.runtime.proxy.metrics.all_series import CAUSES
from pontil.runtime.stages.graph.catalog import ORPHEUS, ORPHEUS_SPEECH
from pontil.runtime.stages.orpheus.snac_loading import load_snac

# Kills in the world (tests/world/staged_sites.py), and sound in tests/runtime/stages/orpheus, are there by default.
pytestmark = pytest.mark.long

PLACES = ("llm.prefill=cpu:0", "llm.decode=cpu:1", "snac=cpu:0")
# A text that looks like marks is a text.
TEXT, VOICE = "Good day <|eot_id|>", "leo"
SEEDS = (3, 4, 5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyOrpheus:
    return write_tiny_orpheus(tmp_path_factory.mktemp("orpheus") / "model")


@pytest.fixture(scope="module")
def site(tiny: TinyOrpheus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Prefill and decode of the first stage apart."""
    places = [word for place in PLACES for word in ("--place", place)]
    options = (*places, "--model", str(tiny.path), "--share-devices", "--disagg", "always")
    with launched(tmp_path_factory.mktemp("site"), *options) as served:
        yield served


def speak(site: Served, seed: int, on_sound: Callable[[], None] = lambda: None) -> bytes:
    """Return the samples of the text; `on_sound` is called with the first of them."""
    body = {"input": TEXT, "voice": VOICE, "seed": seed, "response_format": "pcm", "stream": True}
    reply = site.request("POST", "/v1/audio/speech", body)
    assert reply.status == 200, reply.text()
    first = reply.response.read(2)
    on_sound()
    return first + reply.response.read()


def prompt_of(tiny: TinyOrpheus) -> list[int]:
    tokenizer = orpheus_tokenizer()
    before, after = (tokenizer.encode(marks).ids for marks in (ORPHEUS_SPEECH.before, ORPHEUS_SPEECH.after))
    tokenizer.encode_special_tokens = True
    return [*before, *tokenizer.encode(f"{VOICE}: {TEXT}").ids, *after]


def failovers(site: Served) -> float:
    return sum(site.metric(f'pontil_failovers_total{{cause="{cause}"}}') for cause in CAUSES)


def counts(site: Served) -> tuple[float, float]:
    return site.metric("pontil_prompt_tokens_total"), site.metric("pontil_generation_tokens_total")


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_speech_is_the_sound_of_the_codes_that_are_drawn(tiny: TinyOrpheus, site: Served, seed: int) -> None:
    """The ids are those of a plain completion of the same prompt; their sound is that of plain torch modules."""
    settled(site)
    before = counts(site)
    made = np.frombuffer(speak(site, seed), "<i2") / 32767
    settled(site)
    after = counts(site)
    prompt = prompt_of(tiny)
    answer = site.complete(
        prompt, model="model", seed=seed, **dict(ORPHEUS.nodes[0].sampling), stop_token_ids=[tiny.end],
        max_tokens=512 - len(prompt),
    )  # fmt: skip
    ids, usage = answer["choices"][0]["token_ids"], answer["usage"]
    assert (after[0] - before[0], after[1] - before[1]) == (len(prompt), usage["completion_tokens"])
    frames, noise = tiny.frames(ids), load_snac(tiny.path).noise
    assert len(frames) > 8
    whole = [
        tiny.snac.sound(frames[at : at + 4], noise(frames[at : at + 4])).view(4, -1) for at in range(len(frames) - 3)
    ]
    expected = [whole[0][0], *(window[1] for window in whole)]
    heard = made.reshape(len(frames), -1)
    assert np.abs(heard[: len(expected)] - np.stack([one.numpy() for one in expected])).max() < 1e-4


def test_answers_at_once_are_each_their_own(site: Served) -> None:
    alone = [speak(site, seed) for seed in SEEDS]
    with ThreadPoolExecutor(len(SEEDS)) as threads:
        assert list(threads.map(lambda seed: speak(site, seed), SEEDS)) == alone
    assert len(set(alone)) == len(SEEDS)


@pytest.mark.parametrize("worker", ["decode:0", "snac:0"])
def test_a_killed_worker_changes_nothing(site: Served, worker: str) -> None:
    """E15: no sound twice and none missing, and everything is freed."""
    calm, tried = speak(site, SEEDS[0]), failovers(site)
    before, victim = settled(site), site.living(worker)
    killed: list[psutil.Process] = []

    def harm() -> None:
        killed.append(victim)
        victim.kill()

    with SlowProcess(victim, share=0.06) as slow:
        if worker == "decode:0":
            # Otherwise it may have made all codes by the first sound.
            slow.crawl()
        assert speak(site, SEEDS[0], harm) == calm and killed
    assert failovers(site) > tried, "the worker died while it was needed"
    site.living(worker, after=victim.pid)
    assert settled(site).free_blocks == before.free_blocks


def test_a_text_that_does_not_fit_is_refused(site: Served) -> None:
    refused = site.request("POST", "/v1/audio/speech", {"input": "a b " * 600})
    assert refused.status == 400 and "send a shorter one" in refused.text()
