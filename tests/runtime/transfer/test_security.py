# SPDX-License-Identifier: Apache-2.0
"""Blocks across a network with keys: sent only to peers with the keys and a grant, and unreadable to all others."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import LAYOUT, Pool
from relay import Relay, Spoil

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.grants import Grant, Grants
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.transfer.tcp.block_encryption import BROKEN
from pontil.runtime.transfer.tcp.connector import TcpConnector
from pontil.runtime.transfer.tcp.frames import HEADS, REQUEST, request
from pontil.runtime.transfer.tcp.server import TcpConnection

SEED, OTHER = b"s" * 32, b"o" * 32
PASS = Grant("r.0", 7, "ab" * 32)
PAIRS = [(block, block) for block in range(1, 10)]


def guarded(seed: bytes | None = SEED) -> Pool:
    guard = None if seed is None else TransferSecurity(seed)
    stall = Deadlines(kv_stall_timeout=1.0)
    return Pool(lambda storage, wake: TcpConnector(storage, wake, ConnectorOptions(deadlines=stall, guard=guard)))


class Two:
    """A KV receiver and a KV sender whose blocks 1 to 9 are announced under PASS, in cell 3."""

    def __init__(self, ours: bytes | None = SEED, theirs: bytes | None = SEED) -> None:
        self.ours, self.theirs = guarded(ours), guarded(theirs)
        server = self.connector(self.theirs).server
        if server.guard is not None:
            server.guard.grants.open(PASS, 3)
            server.guard.grants.allow("r.0", range(1, 10))
        self.theirs.storage.epochs[3] = 7
        self.sent = 0
        sends = server.send

        def send(connection: TcpConnection, runs: Any, heads: range) -> None:
            self.sent += len(runs)
            sends(connection, runs, heads)

        server.send = send  # type: ignore[method-assign]

    @staticmethod
    def connector(pool: Pool) -> TcpConnector:
        assert isinstance(pool.connector, TcpConnector)
        return pool.connector

    @property
    def grants(self) -> Grants:
        guard = self.connector(self.theirs).server.guard
        assert guard is not None
        return guard.grants

    def attach(self, relay: Relay | None = None) -> None:
        described = self.theirs.connector.register()
        host, port = relay.address if relay else (described["host"], described["port"])
        self.ours.connector.attach("P", described | {"host": host, "port": port})

    def pull(self, shown: Grant | None = PASS, pairs: Sequence[tuple[int, int]] = PAIRS, slot: int = 3) -> str | None:
        (done,) = self.ours.finish(self.ours.pull("P", pairs, slot, shown))
        if done.error is None:
            assert done.epoch == 7
            assert self.ours.has([block for _, block in pairs], self.theirs, [block for block, _ in pairs])
        return done.error

    def close(self) -> None:
        self.ours.connector.close()
        self.theirs.connector.close()


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    made.attach()
    yield made
    made.close()


def test_who_has_keys_and_pass_gets_the_blocks(two: Two) -> None:
    assert two.pull() is None
    assert two.pull(pairs=[(9, 20), (1, 21)]) is None, "any part of what was announced, as often as it is wanted"


@pytest.mark.parametrize(
    ("shown", "pairs", "slot"),
    [
        (None, PAIRS, 3),
        (replace(PASS, secret="cd" * 32), PAIRS, 3),
        (replace(PASS, epoch=8), PAIRS, 3),
        (replace(PASS, transfer_id="r.1"), PAIRS, 3),
        (replace(PASS, transfer_id=""), PAIRS, 3),
        (PASS, [(10, 10)], 3),
        (PASS, [*PAIRS, (10, 10)], 3),
        (PASS, PAIRS, 4),
    ],
    ids=["none", "another secret", "another epoch", "another transfer", "no name", "another's block", "one too many",
         "another cell"],
)  # fmt: skip
def test_without_a_good_pass_not_a_byte_is_sent(two: Two, shown: Grant | None, pairs: Any, slot: int) -> None:
    before = two.ours.storage.shared.clone()
    two.sent = 0
    assert two.pull(shown, pairs, slot) is not None
    assert two.sent == 0 and torch.equal(two.ours.storage.shared, before)
    assert two.pull() is None, "others go on"


def test_a_transfer_that_is_over_can_not_be_read_any_more(two: Two) -> None:
    assert two.pull() is None
    two.grants.close("r.0")
    two.grants.close("r.0")
    two.grants.allow("r.0", [1])
    assert two.pull() is not None


@pytest.mark.parametrize(("ours", "theirs"), [(OTHER, SEED), (None, SEED), (SEED, None)])
def test_who_has_other_keys_or_none_gets_nothing(ours: bytes | None, theirs: bytes | None) -> None:
    made = Two(ours, theirs)
    made.attach()
    before = made.ours.storage.shared.clone()
    assert made.pull() is not None
    assert made.sent == 0 and torch.equal(made.ours.storage.shared, before)
    made.close()


def relayed(keys: bytes | None, spoil: Spoil | None = None) -> tuple[Two, Relay]:
    made = Two(keys, keys)
    described = made.theirs.connector.register()
    relay = Relay((described["host"], described["port"]), spoil=spoil)
    made.attach(relay)
    return made, relay


@pytest.mark.parametrize("keys", [SEED, None], ids=["keys", "none"])
def test_nothing_of_a_block_can_be_seen_on_the_way(keys: bytes | None) -> None:
    made, relay = relayed(keys)
    assert made.pull() is None
    block = made.theirs.storage.shared.numpy().reshape(-1).tobytes()[LAYOUT.block_bytes :]
    pieces = [block[start : start + 32] for start in range(0, 8 * LAYOUT.block_bytes, 256)]
    seen = [piece for piece in pieces if piece in relay.seen]
    assert len(seen) == (0 if keys else len(pieces)), "and without keys all of it can, or this would prove nothing"
    made.close()
    relay.close()


def test_what_was_changed_on_the_way_is_not_taken() -> None:
    """The change is somewhere in the blocks: everything else that is sent is shorter."""
    spoiling = threading.Event()

    def flip(data: bytes, before: int) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if spoiling.is_set() and len(data) > 1000 else data

    made, relay = relayed(SEED, flip)
    assert made.pull() is None
    spoiling.set()
    assert made.pull() == BROKEN
    spoiling.clear()
    assert made.pull() is None
    made.close()
    relay.close()


@settings(max_examples=examples(40, 200), deadline=None)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_of_a_request_can_be_changed(place: int, bit: int) -> None:
    """The stamp covers the token, the cell, the heads and every run, and the transfer with its epoch."""
    grants = Grants()
    grants.open(PASS, 3)
    grants.allow("r.0", range(1, 10))
    plain = request(b"t" * 16, 3, [(1, 4), (6, 2)], heads=range(1, 3))
    stamp = PASS.stamp(plain)
    assert grants.admits("r.0", 7, plain, stamp, 3, [(1, 4), (6, 2)])
    changed = bytearray(plain + stamp)
    changed[place % len(changed)] ^= 1 << bit
    assert not grants.admits("r.0", 7, bytes(changed[: len(plain)]), bytes(changed[len(plain) :]), 3, [(1, 4), (6, 2)])
    assert len(plain) == REQUEST.size + HEADS.size + 16 and "ab" * 32 not in repr(PASS)
