# SPDX-License-Identifier: Apache-2.0
"""Prompts with images and recordings whose beginning is in the prefix cache: what is computed behind it has the bits of
a prompt that is computed whole (C16)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import read_model
from shown_prompts import MediaQuestion, prompt_of
from tiny import Rig, check_free, drain, rig, sequence
from tiny_omni import OmniPair

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import Purpose, Sequence
from pontil.runtime.engine.sequences.streamed import StageStreams
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.stages.graph.medium import ENCODER, MEDIA, NAMES
from pontil.runtime.stages.qwen3_omni.encoders.media_prompt import MediaPrompt, OmniMedia
from pontil.runtime.stages.worker.streamed_media import name_media

COUNT = 8
FIRST = MediaQuestion.of(20, (4, 6), 3, ("sound", 33), 25)
NEXT = list(range(30, 55))
DRAWN: dict[str, Any] = {"n": 3, "temperature": 1.3, "seed": 11}


class ShownChat:
    """The first question, with its rows or another picture's, and what follows it in a chat."""

    def __init__(self, pair: OmniPair, model: Decoder) -> None:
        self.pair, self.model = pair, model
        self.media = [medium for medium, _ in FIRST.media(pair)]

    def rows(self, prompt: list[int], flipped: bool = False) -> MediaPrompt:
        images = [(patches.flip(0), grid) if flipped else (patches, grid) for patches, grid in FIRST.images]
        return prompt_of(self.pair, self.model, replace(FIRST, prompt=prompt, images=images))

    def bare(self, prompt: list[int]) -> MediaPrompt:
        """Return a prompt whose rows have not arrived."""
        return OmniMedia(self.pair.path, self.model).begin(prompt, self.media)

    def shown(self, name: str, prompt: list[int], rows: MediaPrompt, seen: str = "00", **params: object) -> Sequence:
        one = sequence(name, prompt, COUNT, logprobs=1, **params)
        one.streams = StageStreams(media=rows)
        places, at = list[int](), 0
        for medium in self.media:
            at = prompt.index(rows.marks[medium.kind], at)
            places.append(at)
            at += medium.rows
        named = [[place, seen * 16] for place in places]
        told = {MEDIA: [medium.to_wire() for medium in self.media], NAMES: named, ENCODER: ["a", "b", "c"]}
        name_media(one.prefix, prompt, told, name)
        return one


@pytest.fixture
def chat(pair: OmniPair, library: KernelLibrary | None) -> ShownChat:
    model = read_model(pair.path, torch.bfloat16, kernels=library)
    assert isinstance(model, Decoder)
    return ShownChat(pair, model)


def answered(used: Rig, one: Sequence) -> list[tuple[int, object]]:
    """Return the tokens of an answer with the logprobs of each."""
    used.engine.add(one)
    found = list[tuple[int, object]]()
    while used.engine.has_work:
        for output in used.engine.step():
            if output.sequence is one:
                found += zip(output.ids, [entry.to_wire() for entry in output.logprobs], strict=True)
    assert len(found) == COUNT
    return found


def test_the_next_turn_finds_all_before(chat: ShownChat) -> None:
    """It needs no rows of the media, and its answer has the bits of one that is computed whole; so has the answer to
    another picture at the same place, which finds nothing but the text before."""
    used = rig(chat.model)
    first = answered(used, chat.shown("first", FIRST.prompt, chat.rows(FIRST.prompt)))
    turn = [*FIRST.prompt, *[token for token, _ in first], *NEXT]
    expected = answered(rig(chat.model), chat.shown("whole", turn, chat.rows(turn)))
    found = chat.shown("next", turn, chat.bare(turn))
    assert answered(used, found) == expected
    assert found.history.cached >= len(FIRST.prompt) // 16 * 16 > 0
    other = chat.shown("other", turn, chat.rows(turn, flipped=True), "11")
    seen = answered(used, other)
    assert other.history.cached == 16 and seen != expected
    assert seen == answered(rig(chat.model), chat.shown("other", turn, chat.rows(turn, flipped=True), "11"))


def test_company_that_asks_the_same_waits_for_it(chat: ShownChat) -> None:
    """Several at once, in steps of few rows: those behind the first find what it computes."""
    expected = answered(rig(chat.model), chat.shown("whole", FIRST.prompt, chat.rows(FIRST.prompt)))
    crowd = rig(chat.model, budget=16)
    seen = [chat.shown(f"s{at}", FIRST.prompt, chat.rows(FIRST.prompt)) for at in range(3)]
    other = chat.shown("other", FIRST.prompt, chat.rows(FIRST.prompt, flipped=True), "11")
    for one in (*seen, other, sequence("text", NEXT, COUNT)):
        crowd.engine.add(one)
    drain(crowd.engine)
    assert [one.output for one in seen] == [[token for token, _ in expected]] * 3
    assert [one.history.cached for one in seen][1:] == [len(FIRST.prompt) - 1] * 2
    assert other.history.cached == 16


def test_a_worker_that_is_given_the_keys_answers_alike(chat: ShownChat) -> None:
    """1P1D, from a cached prefix; then the next turn where the answer was made, of which that worker has no rows."""
    whole = answered(rig(chat.model), chat.shown("whole", FIRST.prompt, chat.rows(FIRST.prompt)))
    giving, taking = rig(chat.model), rig(chat.model)
    answered(giving, chat.shown("before", FIRST.prompt, chat.rows(FIRST.prompt)))
    given = chat.shown("a", FIRST.prompt, chat.bare(FIRST.prompt))
    given.purpose = Purpose.HANDOVER
    giving.engine.add(given)
    (output,) = giving.engine.step()
    assert given.history.cached > 16
    taken = chat.shown("a", FIRST.prompt, chat.bare(FIRST.prompt))
    assert taking.engine.park(taken)
    taking.scheduler.memory.grow(taken, len(FIRST.prompt))
    taking.storage.own[taken.blocks] = giving.storage.own[given.blocks]
    taking.engine.promote(taken, len(FIRST.prompt), [Known(0, output.ids[:1])])
    drain(taking.engine)
    assert taken.output == [token for token, _ in whole]
    turn = [*FIRST.prompt, *taken.output, *NEXT]
    found = chat.shown("next", turn, chat.bare(turn))
    assert answered(taking, found) == answered(rig(chat.model), chat.shown("b", turn, chat.rows(turn)))


def test_a_prompt_that_lost_its_blocks_waits_for_its_rows(chat: ShownChat) -> None:
    """Found in the cache, preempted, and evicted meanwhile: it is computed again, once its rows are here."""
    rows = chat.bare(FIRST.prompt)
    first_mark = rows.places[0]
    assert rows.ready(first_mark, 99) == 0 and rows.ready(0, 99) == first_mark
    assert rows.ready(rows.places[-1] + 1, 999) == 999 - rows.places[-1] - 1
    between = rows.places[chat.media[0].rows - 1] + 1
    assert rows.ready(between, 999) == rows.places[chat.media[0].rows] - between


def choices_alone(chat: ShownChat) -> dict[str, list[int]]:
    """Return what each choice says as a sequence that never forked."""
    found = dict[str, list[int]]()
    for choice in range(3):
        one = chat.shown("a", FIRST.prompt, chat.rows(FIRST.prompt), **DRAWN)
        one.branch.forked, one.branch.choice = True, choice
        alone = rig(chat.model)
        alone.engine.add(one)
        found |= drain(alone.engine)
    assert len({*map(tuple, found.values())}) == 3
    return found


def has_paused(used: Rig) -> bool:
    return any(one.id == "a" for one in used.scheduler.queues.paused)


def test_choices_say_what_each_would_alone(chat: ShownChat) -> None:
    """The prompt is computed once. Beside others, after a pause for want of a seat, and computed again after
    others took the blocks of some, where nothing is cached."""
    expected = choices_alone(chat)
    for used in (rig(chat.model), rig(chat.model, seats=5), rig(chat.model, blocks=9, caching=False)):
        used.engine.add(sequence("text", NEXT, COUNT, **DRAWN))
        used.engine.add(chat.shown("a", FIRST.prompt, chat.rows(FIRST.prompt), **DRAWN))
        used.engine.step()
        used.engine.step()
        assert has_paused(used) == (used.scheduler.queues.max_num_seqs == 5)
        said = drain(used.engine)
        assert expected.items() <= said.items() and len(said) == 6
        assert bool(used.scheduler.preemptions) == (used.pool.capacity < 10)
        check_free(used)


def test_choices_go_on_where_the_keys_were_sent(chat: ShownChat) -> None:
    """1P1D: the worker that goes on has no rows, and turns the answers as the one that had them does."""
    giving, taking = rig(chat.model), rig(chat.model)
    given = chat.shown("a", FIRST.prompt, chat.rows(FIRST.prompt), **DRAWN)
    given.purpose = Purpose.HANDOVER
    giving.engine.add(given)
    firsts = [Known(output.sequence.branch.choice, output.ids[:1]) for output in giving.engine.step()]
    taken = chat.shown("a", FIRST.prompt, chat.bare(FIRST.prompt), **DRAWN)
    assert taking.engine.park(taken)
    taking.scheduler.memory.grow(taken, len(FIRST.prompt))
    taking.storage.own[taken.blocks] = giving.storage.own[given.blocks]
    taking.engine.promote(taken, len(FIRST.prompt), firsts)
    assert drain(taking.engine) == choices_alone(chat)
