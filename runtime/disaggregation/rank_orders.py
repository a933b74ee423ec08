# SPDX-License-Identifier: Apache-2.0
"""Orders to the followers of a worker of several ranks, collected until the next plan (RankPlan) takes them."""

from collections.abc import Iterable
from typing import Any

from pontil.runtime.transfer.grants import Grant

# Seconds without an answer to a plan after which a follower may be in a long computation. One that answers sooner, if
# only ever the plan before, says with each answer what it has received.
COMPUTING = 1.0


class RankOrders:
    """Everything about KV blocks that followers have to do, since the last plan. A worker of one rank has no followers,
    and collects nothing. `sent` is the number of the last plan; followers answer each."""

    def __init__(self, ranks: int = 1) -> None:
        self.ranks, self.sent = ranks, 0
        # The last answered plan of each follower, and the time since which it owes an answer and has given none.
        self.answered = dict.fromkeys(self.followers, 0)
        self.behind: dict[int, float] = {}
        # The tags of the blocks that each follower has left from an earlier process.
        self.left: list[dict[int, int]] = []
        self.fields: dict[str, Any] = {}

    @property
    def waiting(self) -> bool:
        """Return whether there is something to send, also when there is nothing to compute."""
        return bool(self.fields)

    @property
    def followers(self) -> range:
        return range(1, self.ranks)

    def take(self) -> tuple[int, dict[str, Any]]:
        """Return the number of the next plan and its fields. Every plan takes its number here."""
        self.sent += 1
        fields, self.fields = self.fields, {}
        return self.sent, fields

    def heard(self, rank: int, number: int) -> None:
        """Record a follower's answer to the plan of that number."""
        self.answered[rank] = max(self.answered[rank], min(number, self.sent))
        self.behind.pop(rank, None)

    def computing(self, now: float) -> set[int]:
        """Return the followers that may be in a long computation: they owe an answer, and have given none for a while.
        If one answers none any more, collectives notice."""
        for rank, number in self.answered.items():
            if number < self.sent:
                self.behind.setdefault(rank, now)
        return {rank for rank, since in self.behind.items() if now - since >= COMPUTING}

    def add(self, field: str, *items: Any) -> None:
        if self.ranks > 1:
            self.fields.setdefault(field, []).extend(items)

    def record(self, block: int, tag: int) -> None:
        """Have a block recorded for a process after this one."""
        self.add("recorded", [block, tag])

    def drop(self, blocks: Iterable[int]) -> None:
        """Have the records of blocks dropped, before these are written. Of one that was recorded since the last plan,
        too: a plan's records come first."""
        if dropped_blocks := list(blocks):
            self.add("dropped", *dropped_blocks)

    def open_grant(self, granted: Grant, slot: int) -> None:
        order = {"id": granted.transfer_id, "epoch": granted.epoch, "secret": granted.secret, "slot": slot}
        self.add("grants", order)

    def allow(self, transfer_id: str, blocks: list[int]) -> None:
        self.add("grants", {"id": transfer_id, "blocks": blocks})

    def close_grant(self, transfer_id: str) -> None:
        self.add("grants", {"id": transfer_id})

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        """Attach a peer. One that was detached since the last plan is detached first."""
        if self.ranks > 1:
            self.fields.setdefault("attached", {})[peer] = descriptor

    def detach(self, peer: str) -> None:
        self.fields.get("attached", {}).pop(peer, None)
        self.add("detached", peer)
