# SPDX-License-Identifier: Apache-2.0
"""The memory of an idle worker of several ranks."""

from contextlib import closing

from rank_groups import RankPair

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.start.prefault import IdleReturn, Prefault


def test_blocks_without_an_owner_go_back_in_all_ranks() -> None:
    with closing(RankPair(2, 2)) as pair:
        worker = pair.theirs
        for storage in worker.storages:
            storage.tensor[1:12] = 2.5
        pool = BlockPool(12)
        owned = pool.take(1)
        pool.release(pool.take(8) or [])
        prefault = Prefault(worker.storages[0], pool, 0)
        idle = IdleWork(idle_return=IdleReturn(prefault, 20.0, 0, worker.pools.erase))
        idle.after_step(9.0, 10.0)
        while idle.patience(30.0, 100.0) == 0.0:
            idle.spend(30.0)
        pair.give()
        for storage in worker.storages:
            assert owned == [1] and bool((storage.tensor[1] == 2.5).all())
            assert not storage.tensor[2:10].any() and bool((storage.tensor[10:12] == 2.5).all())
