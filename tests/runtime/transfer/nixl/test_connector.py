# SPDX-License-Identifier: Apache-2.0
"""Particulars of the connector over NIXL: reads that cannot be taken back, metadata that the library believes,
and the networks on which it may be used. All but the last tests emulate the library."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from emulated_nixl import EmulatedAgent
from pools import LAYOUT, EmulatedNixl, Pool, need, wait_for

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation import connectors
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.nixl import agent as nixl_agent
from pontil.runtime.transfer.nixl.address import LARGEST_METADATA, NixlAddress
from pontil.runtime.transfer.nixl.connector import NixlConnector
from pontil.runtime.transfer.nixl.pull import AT_ONCE, READ_BYTES
from pontil.runtime.transfer.security import TransferSecurity

Pools = Callable[..., Pool]


@pytest.fixture
def pools() -> Iterator[Pools]:
    made: list[Pool] = []

    def one(**settings: Any) -> Pool:
        made.append(Pool(EmulatedNixl, **settings))
        return made[-1]

    yield one
    for pool in made:
        agent_of(pool).held.clear()
        pool.connector.close()


def agent_of(pool: Pool) -> EmulatedAgent:
    agent = connector_of(pool).agent
    assert isinstance(agent, EmulatedAgent)
    return agent


def connector_of(pool: Pool) -> NixlConnector:
    assert isinstance(pool.connector, NixlConnector)
    return pool.connector


def joined(ours: Pool, *others: Pool) -> list[str]:
    """Attach the pools as "0", "1" and so on, and return the names of their agents."""
    for number, other in enumerate(others):
        ours.connector.attach(str(number), other.connector.register())
    return [connector_of(other).agent.name for other in others]


def cells(rows: list[list[int]]) -> bool:
    return [row[1] for row in rows] == [8]


def test_a_pull_in_progress_ends_only_when_its_read_has_ended(pools: Pools) -> None:  # C14
    ours, theirs = pools(), pools()
    (name,) = joined(ours, theirs)
    agent = agent_of(ours)
    agent.held.add(name)
    pull = ours.pull("0", [(3, 5)], 0)
    wait_for(lambda: bool(agent.reads))
    pull.cancel()
    looks = agent.looks
    wait_for(lambda: agent.looks > looks + 20)
    assert ours.connector.poll() == [] and len(agent.reads) == 1
    agent.held.clear()
    (done,) = ours.finish(pull)
    assert done.error == "cancelled" and not agent.reads
    assert len(agent.begun) == 1, "a cancelled pull begins nothing more, not even the cell"


def test_a_pull_that_waits_behind_a_stuck_one_is_cancelled_at_once(pools: Pools) -> None:
    ours, theirs = pools(), pools()
    (name,) = joined(ours, theirs)
    agent_of(ours).held.add(name)
    first = ours.pull("0", [(3, 5)], 0)
    second = ours.pull("0", [(3, 6)], 0)
    second.cancel()
    (done,) = ours.finish(second)
    assert done.error == "cancelled" and ours.connector.poll() == []
    agent_of(ours).held.clear()
    (done,) = ours.finish(first)
    assert done.error is None


def test_one_stuck_peer_holds_up_no_other(pools: Pools) -> None:
    ours, stuck, well = pools(), pools(), pools()
    names = joined(ours, stuck, well)
    agent_of(ours).held.add(names[0])
    first = ours.pull("0", [(3, 5)], 0)
    before, other = first.received, ours.pull("1", [(3, 6)], 0)
    (done,) = ours.finish(other)
    assert done.error is None and ours.has([6], well, [3])
    assert other.received > 0 and first.received == before, "only one of them has stalled"
    first.cancel()


def test_the_cell_is_read_after_the_last_block(pools: Pools) -> None:
    big = KVStorage(LAYOUT, 2, torch.device("cpu")).layout.block_bytes
    blocks = 3 * AT_ONCE * READ_BYTES // big
    ours, theirs = pools(blocks=blocks), pools(blocks=blocks)
    (name,) = joined(ours, theirs)
    agent = agent_of(ours)
    theirs.storage.epochs[7] = 70
    agent.held.add(name)
    pull = ours.pull("0", [(block, block) for block in range(1, blocks)], 7)
    wait_for(lambda: len(agent.reads) == AT_ONCE)
    assert not any(cells(rows) for _, rows in agent.begun), "data is still on its way"
    theirs.storage.epochs[7] = 71
    agent.held.clear()
    (done,) = ours.finish(pull)
    assert done.epoch == 71 and done.digests == theirs.storage.digests(range(1, blocks))
    # Its peer is asked for the cell again and again then, as it has no pulls.
    of_cells = [cells(rows) for _, rows in agent.begun]
    assert of_cells == sorted(of_cells) and any(of_cells)


def test_a_peer_that_ends_in_the_middle_fails_the_pull_and_is_lost(pools: Pools) -> None:
    ours, theirs = pools(), pools()
    (name,) = joined(ours, theirs)
    agent = agent_of(ours)
    agent.held.add(name)
    pulls = [ours.pull("0", [(3, number)], 0) for number in range(1, 4)]
    wait_for(lambda: bool(agent.reads))
    agent.remove(name)
    agent.held.clear()
    assert {done.error for done in ours.finish(*pulls)} == {"the peer has ended or cannot be reached any more"}
    assert ours.connector.lost() == ["0"]


def test_an_idle_peer_that_ends_is_lost(pools: Pools) -> None:
    ours, theirs = pools(), pools()
    (name,) = joined(ours, theirs)
    ours.finish(ours.pull("0", [], 0))
    assert ours.connector.lost() == []
    agent_of(ours).remove(name)
    wait_for(lambda: ours.connector.lost() == ["0"])


def test_an_agent_is_forgotten_with_its_last_peer_and_a_new_incarnation_is_another(pools: Pools) -> None:
    ours, theirs, again = pools(), pools(), pools()
    agent, name = agent_of(ours), agent_of(theirs).name
    for key in ("a", "b"):
        ours.connector.attach(key, theirs.connector.register())
    ours.connector.detach("a")
    (done,) = ours.finish(ours.pull("b", [(1, 1)], 0))
    assert done.error is None and agent.added == [name] and not agent.removed
    ours.connector.detach("b")
    wait_for(lambda: agent.removed == [name])
    ours.connector.attach("b", again.connector.register())
    (done,) = ours.finish(ours.pull("b", [(2, 2)], 0))
    assert done.error is None and agent.added == [name, agent_of(again).name] and ours.has([2], again, [2])


def test_the_engines_thread_never_waits_for_the_library(pools: Pools) -> None:
    ours, theirs = pools(), pools()
    joined(ours, theirs)
    ours.finish(ours.pull("0", [(1, 1)], 0))
    assert agent_of(ours).callers == {"nixl-connector"}


def test_closing_leaves_the_agent_where_a_read_goes_on(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.runtime.transfer.nixl.reader.JOIN_TIMEOUT", 0.05)
    ours, theirs = pools(), pools()
    (name,) = joined(ours, theirs)
    agent_of(ours).held.add(name)
    pull = ours.pull("0", [(3, 5)], 0)
    wait_for(lambda: bool(agent_of(ours).reads))
    ours.connector.close()
    assert not agent_of(ours).removed
    agent_of(ours).held.clear()
    (done,) = ours.finish(pull)
    assert done.error == "this worker is closing"


def test_metadata_is_believed_only_from_the_same_version_and_undamaged(pools: Pools) -> None:
    """Damaged metadata ends a process that gives it to the library."""
    ours, theirs = pools(), pools()
    good = theirs.connector.register()
    damaged = ("00" if good["metadata"][:2] != "00" else "01") + good["metadata"][2:]
    long = "00" * (LARGEST_METADATA + 1)
    for changed, words in (
        ({"version": "0.1"}, "another version of NIXL than this worker's emulated: install the same for both"),
        ({"metadata": damaged}, "the peer's NIXL metadata is damaged"),
        ({"metadata": long, "digest": hashlib.sha256(bytes.fromhex(long)).hexdigest()}, "no usable 'metadata'"),
        ({"metadata": "zz"}, "no usable 'metadata'"),
        ({"memory": "FILE"}, "no usable 'memory'"),
        ({"pool": "00" * 8}, "no usable 'pool'"),
        ({"cells": "ff" * 8}, "no usable 'cells'"),
        ({"agent": "ab"}, "no usable 'agent'"),
        ({"block_bytes": 8}, "another size than ours"),
    ):
        with pytest.raises(TransferError, match=words):
            ours.connector.attach("0", good | changed)
    assert not agent_of(ours).callers, "the library saw none of them"


def test_a_peer_that_the_library_refuses_fails_its_pulls_with_the_reason(pools: Pools) -> None:
    ours, theirs = pools(), pools()
    told = b"not what an agent says"
    changed = {"metadata": told.hex(), "digest": hashlib.sha256(told).hexdigest()}
    ours.connector.attach("0", theirs.connector.register() | changed)
    (done,) = ours.finish(ours.pull("0", [(1, 1)], 0))
    assert str(done.error).startswith("NIXL cannot use the peer's metadata") and ours.connector.lost() == ["0"]
    ours.connector.detach("0")
    joined(ours, theirs)
    (done,) = ours.finish(ours.pull("0", [(1, 1)], 0))
    assert done.error is None


def test_an_address_is_read_as_it_was_written(pools: Pools) -> None:
    pool = connector_of(pools())
    memory = pool.pool.memory
    read = NixlAddress.read(pool.register(), memory.block_bytes, memory.heads, "emulated")
    assert read == NixlAddress(pool.agent.name, pool.agent.metadata(), memory)


def test_keys_do_not_go_with_it_across_a_network() -> None:
    storage = KVStorage(LAYOUT, 4, torch.device("cpu"))
    options = ConnectorOptions("10.1.2.3", guard=TransferSecurity(b"s" * 32))
    with pytest.raises(TransferError, match="neither encrypts.*--insecure"):
        EmulatedNixl(storage, lambda: None, options)
    options = ConnectorOptions(guard=TransferSecurity(b"s" * 32), deadlines=Deadlines(kv_stall_timeout=7))
    made = EmulatedNixl(storage, lambda: None, options)
    made.close()
    assert isinstance(made, EmulatedNixl) and isinstance(made.agent, EmulatedAgent)
    assert made.agent.patience == 7, "a cut link ends reads long before a worker would be ended for them"


def test_memory_that_is_registered_is_zeroed_and_not_given_back(pools: Pools) -> None:
    """A device of the network goes on with the pages that were there when they were registered."""
    pool = pools()
    assert pool.storage.pinned
    before = os.fstat(pool.storage.fd).st_blocks
    pool.storage.erase(range(1, 40))
    assert os.fstat(pool.storage.fd).st_blocks == before
    assert pool.storage.own[0].any() and not pool.storage.own[1:].any()


def test_it_listens_on_the_interface_of_its_address_alone() -> None:
    assert nixl_agent.interface_of("127.0.0.1") == nixl_agent.interface_of("::1") == "lo"
    with pytest.raises(TransferError, match=r"has the address 203\.0\.113\.77"):
        nixl_agent.interface_of("203.0.113.77")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "find_spec", lambda name: None)
    words = "the connector nixl needs the package nixl-cu12, which is not installed: run `pip install nixl-cu12`"
    assert connectors.missing_package(connectors.CONNECTORS["nixl"]) == words
    with pytest.raises(TransferError, match="pip install nixl-cu12"):
        NixlConnector(KVStorage(LAYOUT, 4, torch.device("cpu")), lambda: None)


def test_idle_agents_take_no_time_of_the_processor() -> None:
    need("nixl")
    ours, theirs = Pool(NixlConnector), Pool(NixlConnector)
    try:
        joined(ours, theirs)
        ours.finish(ours.pull("0", [(1, 1)], 0))
        # In a fixed time a thread that spins would take all of it; no condition says that nothing happens.
        begun, until = time.process_time(), time.monotonic() + 2
        wait_for(lambda: time.monotonic() >= until)
        assert time.process_time() - begun < 0.5
    finally:
        ours.connector.close()
        theirs.connector.close()
