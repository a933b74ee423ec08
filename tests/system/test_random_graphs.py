# SPDX-License-Identifier: Apache-2.0
"""Ten random graphs as real processes: launcher, proxy and a worker of each stage, with streams between them, and one
worker that dies in the middle of its work.

By default such graphs run as tasks (tests/runtime/stages/worker/test_random_graphs.py) and in the world, with a proxy,
workers and faults (tests/world/test_random_graphs.py)."""

import json
import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from graph_launch import GATE, RUNS, SEEDS, WAITING
from oracle import settled
from random_answers import plain_run_of
from random_models import FIRST, Given, HashNodes, PlainRun, counts_of, random_model
from served import ROOT, Served, launched, wait_for
from spoken import Spoken, speak
from tiny_llama import write_tiny_llama

from pontil.runtime.proxy.metrics.all_series import CAUSES
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

PROGRAM = ROOT / "tests" / "support" / "fakes" / "graph_launch.py"
pytestmark = pytest.mark.long
TEXT = "the sea was calm"
# Answers of one, two and many items of text.
ASKED: list[dict[str, Any]] = [
    {"max_tokens": tokens, "temperature": 0.9, "seed": tokens, "ignore_eos": True, "audio": {"format": "pcm16"}}
    for tokens in (1, 2, 37)
]


class GraphSite:
    """A launch of a random model."""

    def __init__(self, seed: int, served: Served, folder: Path, tokenizer: Tokenizer) -> None:
        self.model, self.served, self.folder, self.tokenizer = random_model(seed), served, folder, tokenizer

    def speak(self, asked: Mapping[str, Any]) -> Spoken:
        return speak(self.served, TEXT, **asked)

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that ended well, as the conductor counted them."""
        return [json.loads(line) for line in (self.folder / RUNS).read_text().splitlines()]

    def plain(self, ids: list[int]) -> PlainRun:
        return plain_run_of(self.model.name, tuple(ids), (), self.tokenizer)

    def check(self, spoken: Spoken) -> PlainRun:
        """Compare an answer, and what was counted of it, with the plain run of its text; return that."""
        (told,) = [one for one in self.runs() if self.tokenizer.decode(one["ids"]) == spoken.text]
        plain = self.plain(told["ids"])
        assert spoken.sound == plain.sound
        for name, counted in told["counts"].items():
            assert counted == list(counts_of(plain, name)), name
        assert told["counts"].keys() == {node.name for node in self.model.nodes[1:]}
        return plain

    def failovers(self) -> float:
        return sum(self.served.metric(f'pontil_failovers_total{{cause="{cause}"}}') for cause in CAUSES)


def pieces(site: GraphSite, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how many pieces of work each stage does in a run of these ids."""
    done, compute = Counter[str](), HashNodes.compute

    def counted(nodes: HashNodes, node: str, walk: str, given: Given, final: bool) -> Any:
        done[nodes.stage] += 1
        return compute(nodes, node, walk, given, final)

    with monkeypatch.context() as patched:
        patched.setattr(HashNodes, HashNodes.compute.__name__, counted)
        plain_run_of.cache_clear()
        site.plain(ids)
    return done


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_runs_as_real_processes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # E1, E2, E3, E5, E15, E16
    folder, chance = tmp_path / "model", random.Random(seed)
    write_tiny_llama(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"].append(f"RandomGraph{seed}")
    (folder / "config.json").write_text(json.dumps(config))
    names = [node.name for node in random_model(seed).nodes[1:]]
    first = chance.choice(([f"{FIRST}=cpu:0"], [f"{FIRST}.prefill=cpu:0", f"{FIRST}.decode=cpu:1"]))
    places = [*first, *(f"{name}=cpu:{chance.randrange(2)}" for name in names)]
    options = [word for place in places for word in ("--place", place)]
    with launched(
        tmp_path, *options, "--model", str(folder), "--share-devices", "--disagg", "always", app=PROGRAM
    ) as served:
        site = GraphSite(seed, served, tmp_path, load_tokenizer(folder))
        with ThreadPoolExecutor(len(ASKED)) as threads:
            answers = list(threads.map(site.speak, ASKED))
        for spoken in answers:
            site.check(spoken)
        before, tried = settled(served), site.failovers()
        told = next(one for one in site.runs() if site.tokenizer.decode(one["ids"]) == answers[-1].text)
        done = pieces(site, told["ids"], monkeypatch)
        stage = chance.choice(sorted(done))
        killed_in_the_middle(site, stage, done[stage], answers[-1])
        assert site.failovers() > tried
        assert settled(served).free_blocks == before.free_blocks


def killed_in_the_middle(site: GraphSite, stage: str, pieces_of_stage: int, right: Spoken) -> None:
    """Kill the worker of a stage before the piece of work in the middle of an answer, which must be as it was."""
    gate, waiting = site.folder / GATE, site.folder / WAITING
    victim = site.served.living(f"{stage}:0")
    (site.folder / RUNS).unlink()
    gate.write_text(json.dumps([victim.pid, (pieces_of_stage + 1) // 2]))
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(site.speak, ASKED[-1])
        wait_for(waiting.exists, 120, "a worker in the middle of an answer")
        victim.kill()
        assert answer.result() == right
    site.check(right)
    site.served.living(f"{stage}:0", after=victim.pid)
