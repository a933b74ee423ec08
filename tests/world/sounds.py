# SPDX-License-Identifier: Apache-2.0
"""Clients who have a model of several stages speak: chats that are answered in sound, and texts that are read out; and
what they must hear."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from answer_forms import SPEECH, SPOKEN, prompt_of
from clients import ClientTry, ClientWish, SoundWish
from conversations import letters_of
from hash_model import answer_of
from hash_stages import VOICES, sound_of_codes, sound_of_frames, sound_of_text, spoken_frames
from random_answers import plain_run_of
from staged_sites import SMALL_OMNI, SMALL_ORPHEUS, TINY_SPEECH, StagedSite

from pontil.runtime.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from seed_run import SeedRun

# Share of the requests of such a seed that are for sound, and of these of texts that are read out, where they can be.
IN_SOUND, READ_OUT = 0.6, 0.3
# Share of those that want a WAV file, and that name a voice.
AS_WAV, WITH_VOICE = 0.4, 0.5
# Bytes of the head of a WAV file.
WAV_HEAD = 44
# Letters of a sentence, on average.
SENTENCE = 30


def with_sounds(
    wishes: list[tuple[float, ClientWish]], chance: random.Random, tokenizer: Tokenizer, site: StagedSite
) -> list[tuple[float, ClientWish]]:
    """Return the requests of a seed, of which many are for sound."""
    return [(at, in_sound(one, chance, tokenizer, site) if chance.random() < IN_SOUND else one) for at, one in wishes]


def in_sound(wish: ClientWish, chance: random.Random, tokenizer: Tokenizer, site: StagedSite) -> ClientWish:
    text = "".join(letter + ". " * (chance.random() < 1 / SENTENCE) for letter in letters_of(wish.prompt))
    voice = chance.choice(VOICES) if site.graph == SMALL_OMNI and chance.random() < WITH_VOICE else None
    sound = SoundWish(site.graph, site.stages, voice, chance.random() < AS_WAV)
    plain = replace(wish, resumable=False, breaks=False, turns=(), previous=None, sound=sound)
    if site.graph == TINY_SPEECH and chance.random() < READ_OUT:
        return replace(
            plain, form=SPEECH, messages=(("user", text),), prompt=[], choices=0, max_tokens=0, stop=None, stream=False,
            sound=replace(sound, stages=1, streams=wish.stream),
        )  # fmt: skip
    messages = (("user", text),)
    return replace(plain, form=SPOKEN, choices=1, messages=messages, prompt=prompt_of(messages, tokenizer))


def sounds_equal_the_oracle(run: "SeedRun") -> Iterator[str]:
    """The sound of each answer is that of the right tokens; of one that broke off, a part."""
    for call in run.calls:
        if call.wish.sound is None:
            continue
        right, frames = right_sound(run, call.wish)
        for one in call.tries:
            heard = bytes(one.sound[WAV_HEAD * call.wish.sound.in_wav :])
            yield from (f"{one.name} {what}" for what in wrong_sound(one, heard, right, frames))


def wrong_sound(one: ClientTry, heard: bytes, right: bytes, frames: int) -> Iterator[str]:
    if one.ended != "complete":
        if not right.startswith(heard):
            yield f"has {len(heard)} bytes of another sound, of {len(right)}"
    elif heard != right:
        yield f"has a sound of {len(heard)} bytes, and not the right one of {len(right)}"
    elif one.frames != frames:
        yield f"is told of {one.frames} tokens of sound, and has {frames}"


def right_sound(run: "SeedRun", wish: ClientWish) -> tuple[bytes, int]:
    """Return the sound of an answer, and its frames."""
    assert wish.sound is not None
    if wish.form == SPEECH:
        return sound_of_text(wish.messages[0][1]), 0
    decode = run.model.tokenizer.decode
    ids = answer_of(wish.prompt, wish.seed, 0, wish.max_tokens, run.model.config.vocab_size)
    if wish.stop is not None:
        count = next((count for count in range(1, len(ids) + 1) if wish.stop in decode(ids[:count])), len(ids))
        ids = ids[:count]
    if wish.sound.graph == SMALL_ORPHEUS:
        return sound_of_codes(ids), 0
    if wish.sound.graph not in (TINY_SPEECH, SMALL_OMNI):
        stops = () if wish.stop is None else (wish.stop,)
        return plain_run_of(wish.sound.graph, tuple(ids), stops, run.model.tokenizer).sound, 0
    if wish.sound.graph == TINY_SPEECH:
        text = decode(ids)
        return sound_of_text(text if wish.stop is None else text.partition(wish.stop)[0]), 0
    frames = spoken_frames(wish.prompt, ids, wish.seed, wish.sound.voice or VOICES[0])
    return sound_of_frames(frames), len(frames)
