# SPDX-License-Identifier: Apache-2.0
"""The ways of a worker's KV blocks: out of its pool, and into it."""

from collections.abc import Callable

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.publisher import publisher_for
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.cut_connector import CutConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.messages import SCHEMA, Greet, RankDone
from pontil.runtime.worker.links.connectors import open_connector
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.start.assembly import WorkerResources

Connect = Callable[[WorkerSockets, KVStorage, TransferSecurity | None], SliceConnector]


class BlockTransfers:
    """The blocks of all ranks of a worker. Those that peers may read are published in `pools`; others' are pulled by
    the `connector`, of which `transport` is this rank's part. `greeting` says what two workers must have in common."""

    def __init__(self, sockets: WorkerSockets, machine: WorkerResources, connect: Connect) -> None:
        storage, layout, driver = machine.storage, machine.layout, machine.driver
        guard = sockets.guard()
        self.transport = connect(sockets, storage, guard)
        self.connector = JointConnector(self.transport, storage, driver.orders, driver.pools)
        publisher = publisher_for(storage, sockets.poller.wake, sockets.failures)
        self.pools = RankPools(storage, driver.orders, None if guard is None else guard.grants, publisher)
        sockets.closing.callback(publisher.close)
        sockets.closing.callback(self.connector.close)
        self.greeting = Greet(
            sockets.incarnation,
            "",
            SCHEMA,
            sockets.config.name,
            machine.fingerprint,
            layout.fingerprint(),
            dtype=machine.dtype,
            block_size=layout.block_size,
            kernels=machine.kernels,
            kv_cache_dtype=machine.kv_cache_dtype,
            ranks=layout.ranks,
        )

    def answered(self, done: RankDone) -> None:
        """Handle a follower's answer: pulls end, and announcements may have waited for its digests."""
        self.connector.take(done)
        self.pools.take(done)

    def cut(self, seconds: float) -> None:
        """Cut the link for so many seconds, in a trial."""
        assert isinstance(self.transport, CutConnector), "only a worker for trials is given orders of trials"
        self.transport.cut(seconds)


def open_transport(sockets: WorkerSockets, storage: KVStorage, guard: TransferSecurity | None) -> SliceConnector:
    """Open what moves the blocks of this rank; in trials its link can be cut."""
    made = open_connector(sockets, storage, guard)
    return CutConnector(made, sockets.poller.wake) if sockets.config.allow_chaos else made
