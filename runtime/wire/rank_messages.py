# SPDX-License-Identifier: Apache-2.0
"""The messages between the ranks of one worker: rank 0, the driver, and its followers.

The driver sends each follower the same plans, numbered in order, and a follower answers each with its number, so that
a late answer is never taken for that of a later plan. A follower decides nothing. Data-parallel ranks, which are
workers themselves, start by the same messages, and call each other to rounds.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RankHello:
    """From follower to driver: my process is there. The receiver is not known yet."""

    sender: str
    receiver: str
    rank: int
    ranks: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankWelcome:
    """From driver to follower: `communicator` is the descriptor by which a follower joins the collectives."""

    sender: str
    receiver: str
    communicator: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RankLoaded:
    """From follower to driver: my part of the weights is loaded, and I have room for `num_blocks` KV blocks."""

    sender: str
    receiver: str
    rank: int
    model_fingerprint: str
    kv_fingerprint: str
    kernels: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class RankPool:
    """From driver to follower: every rank's part of the weights is loaded; make a pool of `num_blocks`, whose epochs
    begin with `first_epoch`."""

    sender: str
    receiver: str
    num_blocks: int
    first_epoch: int = 0


@dataclass(frozen=True, slots=True)
class RankReady:
    """From follower to driver: my pool is there. `pool` is its connector's descriptor. `left`: the blocks of an earlier
    process that are whole, as runtime/cache/follower_records.py writes them."""

    sender: str
    receiver: str
    rank: int
    pool: dict[str, Any]
    left: bytes = b""


@dataclass(frozen=True, slots=True)
class RankRound:
    """Between data-parallel ranks, over rank 0: come to the round of this `number`. From rank 0 with number 0: all
    ranks are about to serve."""

    sender: str
    receiver: str
    number: int


@dataclass(frozen=True, slots=True)
class RankPlan:
    """From driver to all followers (`receiver` is empty): the work of one step. Any field may be empty. First come how
    many positions of each sequence that verified guesses in the step before were right, `accepted`, then the
    orders about blocks, which the driver gave before it planned the step, in the order `recorded`, `dropped`, `epochs`,
    `grants`, `erased`, `cleared`, `published`, `forgotten`, `detached`, `attached`, `pulls`, `cancelled`; then
    `copies`, `adapters` and `tiles`.

    `epochs`: [slot, epoch] to write into epoch cells. `grants`: changes of what peers may read, see
    runtime/disaggregation/rank_orders.py. `erased`: [first block, block behind the last] of unused ones, whose memory
    goes back. `cleared`: [block, filled slots] whose rest is zeroed. `published`: requests, each a number, the ranks of
    the taking worker, 1 where blocks need a copy in host memory, and then blocks to make readable and to digest.
    `forgotten`: blocks whose copies in host memory no transfer needs any more. `detached`: peers. `attached`: {peer:
    descriptor}. `pulls`: see
    runtime/disaggregation/joint_connector.py. `cancelled`: tickets of pulls. `copies`: [from, to] of whole blocks.
    `tiles`: rows to compute, as runtime/engine/tiles/plan_tables.py writes them. `stop`: leave after this plan.
    `recorded`: [block, tag] to record for a process after this one. `dropped`: blocks whose records are dropped.
    `adapters`: parts of adapters to read, to compute with, to drop or to remove, see
    runtime/worker/adapters/adapter_parts.py.
    """

    sender: str
    receiver: str
    number: int
    epochs: list[list[int]] = field(default_factory=list)
    copies: list[list[int]] = field(default_factory=list)
    tiles: list[dict[str, Any]] = field(default_factory=list)
    cleared: list[list[int]] = field(default_factory=list)
    published: list[list[int]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    attached: dict[str, dict[str, Any]] = field(default_factory=dict)
    detached: list[str] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    stop: bool = False
    grants: list[dict[str, Any]] = field(default_factory=list)
    recorded: list[list[int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    erased: list[list[int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    adapters: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankDone:
    """From follower to driver: plan `number` is carried out; or, with the number of the last one, that pulls have
    ended. `digests`: for each answered request of `published`, its number and then the digests of its blocks. `pulls`:
    pulls that ended. `failed_peers`: peers that could not be attached, with the reason. `received`: numbers that grow
    while bytes come, by peer. `lost`: attached peers whose process has ended. `direct`:
    attached peers whose own memory this rank reads, so that they need not stage blocks for it. `adapters`: parts of
    adapters that were read, or why they could not be."""

    sender: str
    receiver: str
    rank: int
    number: int
    digests: list[list[int]] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    failed_peers: dict[str, str] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    direct: list[str] = field(default_factory=list)
    adapters: list[dict[str, Any]] = field(default_factory=list)
