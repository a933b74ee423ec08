# SPDX-License-Identifier: Apache-2.0
"""The invariants of workers of several ranks, once nothing is under way."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hash_model import cells_of, form_of
from rank_process import DriverProcess, FollowerProcess

from pontil.launcher.plan.child_plan import rank_name
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.worker.generate.worker import Worker

if TYPE_CHECKING:
    from seed_run import SeedRun


def groups(run: "SeedRun") -> Iterator[tuple[Worker, FollowerProcess]]:
    """Yield each driver's worker with each of its followers."""
    by_name = {process.name: process for process in run.site.processes}
    for process in run.site.workers:
        if isinstance(process, DriverProcess):
            assert process.worker is not None
            for rank in process.worker.machine.driver.orders.followers:
                follower = by_name.get(rank_name(process.name, rank))
                if isinstance(follower, FollowerProcess) and follower.follower is not None:
                    yield process.worker, follower


def every_plan_is_carried_out_and_answered(run: "SeedRun") -> Iterator[str]:
    """Every follower has done all that its driver ordered, has said so, and has no pull left."""
    for worker, process in groups(run):
        sent, rank = worker.machine.driver.orders.sent, process.rank
        assert process.follower is not None
        transfers = process.follower.transfers
        done, said = process.follower.done, worker.machine.driver.orders.answered[rank]
        if not sent == done == said:
            yield f"{process} has done plan {done} of {sent} and answered plan {said}"
        left = {
            "pulls": len(transfers.pulls), "grants": len(transfers.grants.opened),
            "orders": len(worker.machine.driver.orders.fields), "publications": len(worker.transfers.pools.unanswered),
            "joint pulls": len(worker.transfers.connector.ordered),
        }  # fmt: skip
        if left := {name: count for name, count in left.items() if count}:
            yield f"{process} and its driver have {left}"


def every_rank_holds_what_the_prefix_cache_names(run: "SeedRun") -> Iterator[str]:
    """Every block of the prefix cache begins with the same position on every rank. How many more of its positions count
    the pool does not say; a step looks at each that it reads."""
    for worker, process in groups(run):
        known = sorted(worker.machine.pool.index.keys)
        if process.storage is not None and known:
            pairs = zip(known, begins(worker.machine.storage, known), begins(process.storage, known), strict=True)
            if differ := [block for block, mine, other in pairs if mine != other]:
                yield f"{process} holds something else in blocks {differ} of {len(known)}"


def begins(storage: KVStorage, blocks: list[int]) -> list[list[int]]:
    """Return the first cell of each block in each plane, of one head, in the form of head 0."""
    heads = storage.layout.kv_heads
    found: list[list[int]] = (cells_of(storage)[blocks, :: len(heads), 0] ^ form_of(heads.start)).tolist()
    return found
