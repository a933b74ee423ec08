# SPDX-License-Identifier: Apache-2.0
"""Replay recorded conversations over real launches of a small random model with recurrent layers, and print how much of
what turns repeat was found.

    python scripts/bench_states.py --conversations 60

Each way to serve has a launch of its own: one mixed worker, a pair of a prefill and a decode worker as it is by
default, and a pair that disaggregates every request. Each worker's pool has --blocks blocks of 256 positions, each with
its states, whose sizes are those of a model of four layers: what is found depends on lengths and on blocks alone. Users
play conversations as scripts/bench_routing.py does. One line of JSON is printed for each way, its terms defined here:

  turns, whole   turns that were answered, and those of them that one worker answered alone
  reusable       prompt tokens that the conversation had before
  newest         those of them that were the answer just before the turn
  hit            prompt tokens that were cached, as the server's usage says
  rate           hit of reusable
  failures       turns without a complete answer; their conversation ends

scripts/replay_states.py states the same of one mixed worker in virtual time, without a model.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, sorted((ROOT / "tests/support").iterdir()))]

from bench_routing import LENGTHS, RoutingRun, conversations  # noqa: E402
from served import launched  # noqa: E402
from tiny_hybrid import write_tiny_hybrid  # noqa: E402

import app  # noqa: E402, F401
from pontil.runtime.cache.layout import layout_for  # noqa: E402

WAYS = {
    "mixed": ("--role", "mixed", "--mixed", "cpu:0"),
    "pair": ("--prefill", "cpu:0", "--decode", "cpu:1", "--share-devices"),
    "always": ("--prefill", "cpu:0", "--decode", "cpu:1", "--share-devices", "--disagg", "always"),
}
MODEL, DTYPE, PAGE, LONGEST = "tiny-hybrid", "bfloat16", 16, 16_000
# Ids that the tiny model's tokenizer has.
VOCABULARY = 250

Lengths = Sequence[Sequence[tuple[int, int]]]


def replayed(folder: Path, way: str, chosen: Lengths, blocks: int, users: int, pause: float) -> dict[str, Any]:
    """Play these conversations, of new prompt tokens and output for each turn, over a launch; return the figures."""
    config = write_tiny_hybrid(folder / "model", DTYPE, max_position_embeddings=LONGEST)
    memory = blocks * layout_for(config, PAGE, DTYPE).block_bytes
    words = ("--model", str(folder / "model"), "--served-model-name", MODEL, "--dtype", DTYPE, *WAYS[way])
    with launched(folder, *words, "--block-size", str(PAGE), "--kv-cache-memory", str(memory)) as served:
        run = RoutingRun(f"http://127.0.0.1:{served.port}", MODEL, VOCABULARY, pause, seed=1)
        run.play(chosen, users)
    found = run.summary()
    return {
        "way": way, "turns": found["turns"], "whole": found["whole_turns"], "reusable": found["repeated"],
        "newest": newest_answers(chosen), "hit": found["cached"], "rate": found["cached_of_repeated"],
        "failures": found["failures"],
    }  # fmt: skip


def recorded(count: int) -> Lengths:
    """Return the first so many conversations, as far as they fit the model's context."""
    return list(islice(conversations(LENGTHS, 1.0, LONGEST), count))


def newest_answers(chosen: Lengths) -> int:
    """Return how many tokens the answers have that a turn follows."""
    return sum(output for turns in chosen for _, output in turns[:-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--blocks", type=int, default=256, help="of each worker's pool")
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.5, help="mean seconds before a later turn")
    given = parser.parse_args()
    chosen = recorded(given.conversations)
    failures = 0
    for way in given.ways:
        with tempfile.TemporaryDirectory() as folder:
            found = replayed(Path(folder), way, chosen, given.blocks, given.users, given.pause)
        print(json.dumps(found), flush=True)
        failures += found["failures"]
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
