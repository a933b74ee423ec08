# SPDX-License-Identifier: Apache-2.0
"""The invariants of leases find planted faults, each in a seed that is known to show it."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import past_faults
import pytest
from followed_leases import LeaseBill, wrong_in

from pontil.runtime.cache.leases.lease import REFUNDED
from pontil.runtime.cache.leases.lease_book import LOST, STUCK

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    "leases-own-no-blocks": (5, "a_leased_block_is_found"),
    "refunds-are-forgotten": (4, "byte_seconds_are_conserved"),
    "lease-says-more-than-it-keeps": (9, "a_leased_token_is_hit_or_refunded"),
    "lease-is-let-go-before-it-moved": (33, "byte_seconds_are_conserved"),
    "lease-that-moved-is-not-let-go": (14, "one_worker_has_a_lease"),
    "lease-that-moves-is-billed-anew": (9, "a_lease_that_moves_is_billed_once"),
    "lease-that-follows-is-longer": (14, "a_lease_that_moves_is_billed_once"),
    "lease-of-another-proxy-is-released": (25, "a_lease_that_moves_is_billed_once"),
    "both-of-two-holders-let-go": (57, "one_worker_has_a_lease"),
    "answer-ends-before-its-lease-is-known": (19, "an_answer_says_if_its_prompt_is_leased"),
    "lease-is-pulled-from-who-is-on-trial": (20, "who_is_refused_serves_nobody"),
}
# Workers that die, and whose links are cut, with proxies that hear of it in any order; and what takes these.
TORN: tuple[str, ...] = ("--prefill", "0", "--decode", "0", "--mixed", "3", "--proxies", "3", "--adapters", "0")
TORN += ("--requests", "6", "--faults", "12", "--changes", "1", "--kinds", "cut,silence,flap,kill")
# Chats of pairs, whose leases come beside their answers.
BESIDE = ("--kept", "30", "--prefill", "2", "--decode", "2", "--mixed", "0")
MORE: dict[str, tuple[str, ...]] = {
    "lease-of-another-proxy-is-released": TORN, "both-of-two-holders-let-go": TORN,
    "answer-ends-before-its-lease-is-known": BESIDE, "lease-is-pulled-from-who-is-on-trial": BESIDE,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_of_leases_is_found(name: str, tmp_path: Path) -> None:
    seed, check = PLANTED[name]
    code, said = past_faults.run_past(name, tmp_path, range(seed, seed + 1), ["--first", *MORE.get(name, ())])
    assert code == 1 and f": {check}: " in said, said


@pytest.mark.long
@pytest.mark.parametrize("befalls", ["kill", "drain"])
@pytest.mark.parametrize("ratio", ["0:3", "1:2"])
def test_a_flood_leaves_a_lease_whole_while_every_worker_dies_or_drains(ratio: str, befalls: str) -> None:
    """A part of the flood of docs/guide/contracts.md: each request behind the lease finds all of it."""
    steps = "1=14.4,8=14.8,32=53.3,256=284.2"
    command = [sys.executable, "scripts/simulate_leases.py", "--steps", steps, "--requests", "300", "--ratio", ratio]
    command += ["--befalls", befalls]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert not done.returncode, done.stdout + done.stderr
    alone, beside = [json.loads(line) for line in done.stdout.splitlines()]
    assert (alone["answered"], beside["answered"], beside["kills"]) == (300, 300, 3)
    assert beside["state"] == "held" and beside["hits"] > 0 and not beside["missed"]


@pytest.mark.parametrize(
    ("full_at", "reason", "is_right"), [(20.0, LOST, True), (5.0, LOST, False), (20.0, STUCK, False)]
)
def test_a_refund_for_a_lost_block_is_right_only_on_a_disk_that_was_full(
    full_at: float, reason: str, is_right: bool
) -> None:
    disks = SimpleNamespace(without_room={("mixed:0", "kv"): full_at, ("mixed:1", "kv"): 20.0})
    run: Any = SimpleNamespace(world=SimpleNamespace(disks=disks, processes=[]))
    granted = {"byte_seconds": {"granted": 100}}
    lease: Any = SimpleNamespace(granted=granted, told=[], asked_until=None, granted_at=10.0, released_at=None)
    wrong = list(wrong_in(run, lease, LeaseBill("mixed:0", REFUNDED, reason, 1, 100, 50)))
    assert wrong == ([] if is_right else [f"is refunded, since {reason}, and mixed:0 has not ended"])


def test_a_request_in_the_moment_of_a_death_finds_the_leased_tokens() -> None:
    """The first worker, which holds the lease, dies a moment before a request behind it comes: that one waits for the
    next process instead of computing all of the prompt. (Imports the product, and runs two floods.)"""
    command = [sys.executable, "scripts/simulate_leases.py", "--steps", "1=14.4,8=14.8,32=53.3,256=284.2"]
    command += ["--requests", "60", "--first", "1.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert not done.returncode, done.stdout + done.stderr
    alone, beside = [json.loads(line) for line in done.stdout.splitlines()]
    assert (alone["kills"], beside["kills"], beside["state"]) == (3, 3, "held")
    assert (beside["hits"], beside["moving"], beside["missed"]) == (1, 0, [])
