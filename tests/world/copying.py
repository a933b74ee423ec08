# SPDX-License-Identifier: Apache-2.0
"""The real shared-memory connector, whose pulls take virtual time: the bytes are read at one moment and the epoch at a
later one, with all that may happen between them. And the memory that its peers map."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from virtual_time import HERE

from pontil.runtime.cache.storage import KVStorage, epoch_after_data
from pontil.runtime.disaggregation.joint_pull import PullPart
from pontil.runtime.disaggregation.receiver import BlockPull, ReceiveTransfer
from pontil.runtime.errors import TransferError
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.connector import ConnectorOptions, Pull, PullResult
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.transfer.shm import peer_pool
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.shm.copying_connector import CopyJob, cancelled
from pontil.runtime.transfer.shm.peer_pool import PeerMemory, PeerPool
from pontil.runtime.wire.simulated.network import LINK_TIMEOUT
from pontil.runtime.wire.simulated.processes import WorldProcess

# Seconds of a pull, and of each of its blocks at least.
PULL_SECONDS, BLOCK_SECONDS = 0.2e-3, 20e-6
# Shares of pulls that are slow, of which each seed has one, and for how many seconds they are.
SLOW_SHARES, SLOW_SECONDS = (0.02, 0.1, 0.4), 0.3
# Seconds until a copier sees that its pull is no longer wanted, at least and at most: it finishes its piece.
NOTICES_WITHIN = 1e-3, 20e-3
# The error of a pull whose peer hangs up.
REFUSED = "the peer closed the connection"
# No pull has this epoch.
UNKNOWN_EPOCH = -1


class SeenMemory(PeerMemory):
    """The memory of another process of the world. It stays readable after that one's end, as mapped memory does."""

    def __init__(self, identity: str, storage: KVStorage, owner: WorldProcess) -> None:
        super().__init__(-1, storage.file.tensor.numpy())
        self.identity, self.owner = identity, owner

    @property
    def ended(self) -> bool:
        return not self.owner.alive


def open_memory(descriptor: dict[str, Any], size: int) -> PeerMemory:
    """Stands for peer_pool.open_memory."""
    identity = str(descriptor.get("identity"))
    storage, _, owner = HERE.world.ghosts.pools.get(identity, (None, None, None))
    if storage is None or owner is None or not owner.alive or storage.size != size:
        raise TransferError("the peer's memory cannot be opened (No such process): is it on this host?")
    return SeenMemory(identity, storage, owner)


def map_peers_of_the_world() -> None:
    untyped: Any = peer_pool
    untyped.open_memory = open_memory


def identity_of(pool: PeerPool) -> str:
    assert isinstance(pool.host, SeenMemory)
    return pool.host.identity


def transfer_of(pull: Pull) -> ReceiveTransfer | None:
    """Return the transfer of a pull. A follower does not know for which one its driver ordered it, and pulls of the
    streams of stages have none."""
    whole = pull.whole.pull if isinstance(pull, PullPart) else pull
    return whole.transfer if isinstance(whole, BlockPull) else None


def owner_of(pool: PeerPool) -> WorldProcess:
    assert isinstance(pool.host, SeenMemory)
    return pool.host.owner


class EventConnector(ShmConnector):
    """The connector of one worker. A pull that is `stuck_until` a time ends no sooner, whatever is asked."""

    def __init__(
        self, storage: KVStorage, wake: Callable[[], None], failures: ThreadFailures,
        guard: TransferSecurity | None = None,
    ) -> None:  # fmt: skip
        super().__init__(storage, wake, ConnectorOptions(failures=failures))
        self.guard = guard
        assert HERE.world.current is not None
        process = self.process = HERE.world.current
        self.ghosts = HERE.world.ghosts
        if guard is not None:
            self.ghosts.security[storage.identity.hex()] = guard
        self.chance = process.world.random("copying")
        self.slow_share = SLOW_SHARES[process.world.seed % len(SLOW_SHARES)]
        self.free_at = self.stuck_until = 0.0
        # Pulls take so many times as long.
        self.slowness = 1.0
        # By pull: the lives of the blocks that it writes, as it was started, and what ends it.
        self.lives: dict[Pull, list[int]] = {}
        self.ends: dict[Pull, Callable[[], None]] = {}

    def register(self) -> dict[str, Any]:
        """Name the pool by its identity alone: which number its file has depends on when garbage was collected."""
        return {**super().register(), "fd": 0}

    def pull(self, pull: Pull) -> None:
        super().pull(pull)
        self.lives[pull] = self.ghosts.lives_of(self.storage.identity.hex(), [ours for _, ours in pull.pairs])

    def carry_out(self, job: CopyJob[PeerPool]) -> None:
        """Start a pull: it reads the bytes at some moment before its end."""
        world, pull, pairs = self.process.world, job.pull, job.pull.pairs
        transfer, lives = transfer_of(pull), self.lives.pop(pull)
        epoch = UNKNOWN_EPOCH if transfer is None else transfer.epoch
        begins = max(world.now(), self.free_at, self.stuck_until)
        seconds = PULL_SECONDS + len(pairs) * BLOCK_SECONDS * (1 + self.chance.random())
        if self.chance.random() < self.slow_share:
            seconds += self.chance.random() * SLOW_SECONDS
        seconds *= self.slowness
        reads = begins + seconds * self.chance.random()
        self.free_at = begins + seconds
        state: dict[str, Any] = {}

        def read() -> None:
            if pull not in self.ends:
                return
            if owner_of(job.pool).vanished:
                state["silent_until"] = world.now() + LINK_TIMEOUT
                return
            self.ghosts.check_written(self.storage.identity.hex(), [ours for _, ours in pairs], lives)
            if not self.may_read(job, transfer):
                state["refused"] = PullResult(REFUSED)
                return
            state["result"] = self.copy(job)
            identity, blocks = identity_of(job.pool), [theirs for theirs, _ in pairs]
            state["lives"] = self.ghosts.lives_of(identity, blocks)
            shown = int(job.pool.epochs[pull.slot])
            self.ghosts.check_read(identity, pull.slot, epoch, shown, blocks, state["lives"])

        def end() -> None:
            silent_until = state.pop("silent_until", 0.0)
            if world.now() < silent_until and not self.must_end(job):
                self.process.job(silent_until, end)
                return
            if self.ends.pop(pull, None) is not None:
                self.finish(pull, self.result_of(job, transfer, state), job.pool)

        self.ends[pull] = end
        self.process.job(reads, read)
        self.process.job(self.free_at, end)

    def may_read(self, job: CopyJob[PeerPool], transfer: ReceiveTransfer | None) -> bool:
        """Return whether the owner of the blocks lets them be read: across a network with keys that takes its key, and
        the grant of the transfer. Who was told of the blocks, and still may read them, must have it."""
        network, owner, pull = self.process.world.network, owner_of(job.pool), job.pull
        if self.guard is None or network.host_of(owner.name) == network.host_of(self.process.name):
            return True
        identity, blocks = identity_of(job.pool), [theirs for theirs, _ in pull.pairs]
        theirs, shown, request = self.ghosts.security[identity], pull.shown, repr((pull.pairs, pull.slot)).encode()
        if theirs.seed != self.guard.seed:
            return False
        if shown is not None and theirs.grants.admits(
            shown.transfer_id, shown.epoch, request, shown.stamp(request), pull.slot, [(one, 1) for one in blocks]
        ):
            return True
        if transfer is not None:
            self.ghosts.check_refused(identity, pull.slot, transfer.epoch, int(job.pool.epochs[pull.slot]), blocks)
        return False

    def result_of(self, job: CopyJob[PeerPool], transfer: ReceiveTransfer | None, state: dict[str, Any]) -> PullResult:
        """Return the end of a pull: the epoch is read now, after the data."""
        if "result" not in state or self.must_end(job):
            return state.get("refused") or cancelled(self.process.world.now())
        shown = epoch_after_data(job.pool.epochs, job.pull.slot)
        blocks = [theirs for theirs, _ in job.pull.pairs]
        if transfer is not None:
            self.ghosts.check_read(identity_of(job.pool), job.pull.slot, transfer.epoch, shown, blocks, state["lives"])
            if shown != transfer.epoch:
                self.ghosts.moved.add(transfer)
        done: PullResult = replace(state["result"], epoch=shown)
        return done

    def cancel(self, pull: Pull) -> None:
        world = self.process.world
        if (end := self.ends.get(pull)) is not None:
            notices = world.now() + self.chance.uniform(*NOTICES_WITHIN)
            self.process.job(max(notices, self.stuck_until), end)
