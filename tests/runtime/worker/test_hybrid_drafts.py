# SPDX-License-Identifier: Apache-2.0
"""Workers of a model with recurrent layers that guess: the tokens of one that does not, by a pair, behind what an
answer left, after a kill, and with a draft model or layer."""

import random
from pathlib import Path
from typing import Any

import pytest
from always_draft import AlwaysDraft
from drafted import Always, Oracle
from kept_places import WorkerPlace
from tiny_draft_layers import write_eagle_head, write_mtp_hybrid
from tiny_llama import write_tiny_llama
from workers import ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.engine.drafts.head import DraftHead
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.errors import ModelError
from pontil.runtime.worker.start.draft_pair import check_pair

SETTINGS: dict[str, Any] = {"max_model_len": 800, "kv_cache_memory": 8 << 20, "kernels": "auto"}
GUESSING = SETTINGS | {"speculative_tokens": 4}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    write_mtp_hybrid(folder)
    return folder


def test_a_pair_that_guesses_makes_the_tokens_of_a_worker_that_does_not(
    proxy: ScriptedProxy, hybrid: Path, tmp_path: Path
) -> None:
    """From a prompt below a boundary to an answer behind it."""
    prefill, decode = (open_worker(hybrid, tmp_path, f"{role}:0", role, **GUESSING) for role in ("prefill", "decode"))
    plain = open_worker(hybrid, tmp_path, "mixed:0", "mixed", **SETTINGS)
    proxy.admit(prefill, decode, plain)
    kinds = {"greedy": greedy(60, ignore_eos=True), "seeded": drawn(40, seed=5, logprobs=1), "choices": drawn(30, n=2)}

    def answers(way: str) -> dict[str, list[list[int]]]:
        """The choices of each kind, all at once."""
        names = {f"{way} {name}": name for name in kinds}
        for one, name in names.items():
            if way == "split":
                proxy.submit_pair(prefill, decode, one, prompt(STATE_TOKENS - 9), kinds[name])
            else:
                proxy.submit(plain if way == "plain" else decode, one, prompt(STATE_TOKENS - 9), kinds[name])
        made = proxy.answers
        proxy.turn_until(lambda: all(one in made and made[one].ended(kinds[names[one]].n) for one in names))
        return {name: [made[one].choice(choice) for choice in range(kinds[name].n)] for one, name in names.items()}

    known = answers("plain")
    told = {(name, choice): ids for name, some in known.items() for choice, ids in enumerate(some)}
    decode.machine.scheduler.drafts.drafter = Oracle(
        random.Random(1), lambda one: told[one.id.partition("#")[0].partition(" ")[2], one.branch.choice]
    )
    assert answers("split") == known and answers("whole") == known
    assert decode.machine.engine.accepted > 0 and decode.machine.engine.drafted > decode.machine.engine.accepted
    everyone_clean(proxy)


def test_turns_go_on_from_what_a_guessed_answer_left(proxy: ScriptedProxy, hybrid: Path, tmp_path: Path) -> None:
    """At its very end, also by the process after one that was killed."""
    place = WorkerPlace(proxy, hybrid, tmp_path, "mixed:0", "mixed")
    place.start(**SETTINGS, prefix_caching=False)
    first, _ = place.ask(prompt(250), 60)
    turn = [*prompt(250), *first, 7, 8]
    again, _ = place.ask(turn, 12)
    place.end()
    place.start(**GUESSING)
    place.worker.machine.scheduler.drafts.drafter = Always(lambda one: first if len(one.prompt) == 250 else again)
    assert place.ask(prompt(250), 60)[0] == first and place.worker.machine.engine.accepted > 40
    assert place.ask(turn, 12) == (again, 250 + 59)
    place.record()
    place.end()
    place.start(**GUESSING)
    assert place.ask([*turn, *again, 7])[1] == len(turn) + 11
    place.close()


def test_a_layer_goes_on_behind_prefixes_and_kills(proxy: ScriptedProxy, hybrid: Path, tmp_path: Path) -> None:
    """At a boundary, behind an answer, and in the next process: the layer begins where the states are computed."""
    plain = open_worker(hybrid, tmp_path, "mixed:9", "mixed", **SETTINGS, prefix_caching=False)
    proxy.admit(plain)

    def plainly(tokens: list[int], count: int) -> list[int]:
        proxy.submit(plain, f"plain {len(tokens)}", tokens, greedy(count, ignore_eos=True))
        return proxy.finish(f"plain {len(tokens)}")[0].ids

    place = WorkerPlace(proxy, hybrid, tmp_path, "mixed:0", "mixed")

    def start() -> None:
        worker = place.start(**GUESSING, speculative_model="mtp")
        drafter = worker.machine.scheduler.drafts.drafter
        assert isinstance(drafter, ModelDrafter) and isinstance(drafter.model, DraftHead)
        drafter.policy = AlwaysDraft()

    def guessed(tokens: list[int], count: int, known: int) -> list[int]:
        before = place.worker.machine.engine.drafted
        ids, cached = place.ask(tokens, count)
        assert ids == plainly(tokens, count) and cached == known and place.worker.machine.engine.drafted > before
        return ids

    start()
    first = guessed(prompt(300), 20, 0)
    # A prompt that is asked once more goes back to the boundary.
    shared = [*prompt(290), 9, 8, 7]
    guessed(shared, 12, STATE_TOKENS)
    turn = [*prompt(300), *first, 7, 8]
    again = guessed(turn, 20, 319)
    place.record()
    place.end()
    start()
    guessed([*turn, *again, 7], 12, len(turn) + 19)
    place.close()


@pytest.mark.parametrize("what", ["model", "head", "layer"])
def test_a_plain_model_or_a_draft_layer_guesses_for_one_with_states(
    proxy: ScriptedProxy, hybrid: Path, tmp_path: Path, what: str
) -> None:
    """Both have room for the same number of tokens, though not for the same number of blocks."""
    if what == "model":
        write_tiny_llama(tmp_path / "draft", seed=4, num_layers=1)
    elif what == "head":
        write_eagle_head(tmp_path / "draft", hybrid)
    named = Path("mtp") if what == "layer" else tmp_path / "draft"
    check_pair(hybrid, named)
    own = GUESSING | {"speculative_model": str(named), "prefix_caching": False}
    guessing = open_worker(hybrid, tmp_path, "mixed:0", "mixed", **own)
    plain = open_worker(hybrid, tmp_path, "mixed:1", "mixed", **SETTINGS | {"prefix_caching": False})
    drafter, machine = guessing.machine.scheduler.drafts.drafter, guessing.machine
    assert isinstance(drafter, ModelDrafter)
    model = drafter.model
    assert model.pool.num_blocks * model.memory.layout.block_size == machine.pool.num_blocks * STATE_TOKENS
    used = (
        machine.pool.num_blocks * machine.layout.block_bytes + model.pool.num_blocks * model.memory.layout.block_bytes
    )
    assert used <= SETTINGS["kv_cache_memory"] < used + machine.layout.block_bytes * 2
    drafter.policy = AlwaysDraft()
    proxy.admit(guessing, plain)
    for name, params in {"greedy": greedy(40, ignore_eos=True), "seeded": drawn(40, seed=5)}.items():
        proxy.submit(guessing, f"{name} guessed", prompt(STATE_TOKENS - 9), params)
        proxy.submit(plain, f"{name} plain", prompt(STATE_TOKENS - 9), params)
        one, other = proxy.finish(f"{name} guessed", f"{name} plain")
        assert one.ids == other.ids
    assert machine.engine.drafted > 0
    everyone_clean(proxy)


def test_a_model_with_states_guesses_for_none(hybrid: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "target", num_layers=12)
    own = {"speculative_tokens": 2, "speculative_model": str(hybrid), "max_model_len": 400}
    with pytest.raises(ModelError, match="with recurrent layers cannot guess for another"):
        open_worker(tmp_path / "target", tmp_path, "mixed:0", "mixed", **SETTINGS | own)
