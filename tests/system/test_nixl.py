# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker that hand over with NIXL, over TCP as between hosts: either of them is killed while
blocks are read, without effect on any client's stream. Needs the package of the connector."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from disturbed import MODEL, OPTIONS, DisturbedSite
from pools import need
from served import launched, wait_for
from tiny_llama import write_tiny_llama

pytestmark = pytest.mark.long
WORDS = ("--prefill", "cpu:0", "--decode", "cpu:1", "--disagg", "always", "--kv-connector", "nixl")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DisturbedSite]:
    need("nixl")
    folder = tmp_path_factory.mktemp("nixl")
    write_tiny_llama(folder / "small", num_layers=12, max_model_len=2048, dtype="bfloat16")
    small = ("--model", str(folder / "small"), "--served-model-name", MODEL, *OPTIONS, "--kv-cache-memory", "32MiB")
    with launched(folder, *WORDS, *small, variables={"UCX_TLS": "tcp"}) as served:
        yield DisturbedSite(served, 48, is_real=False)


def handed_over(site: DisturbedSite) -> float:
    return site.served.metric('pontil_handoffs_total{result="complete"}')


@pytest.mark.parametrize("name", ["prefill:0", "decode:0"])
@pytest.mark.parametrize("tokens", [0, 1])
def test_a_worker_dies_while_blocks_are_read(site: DisturbedSite, name: str, tokens: int) -> None:
    """The peer comes back as another incarnation, whose agent is added anew: blocks are handed over again."""
    site.survives(site.kills(name, tokens), name)
    before = handed_over(site)
    assert site.answer_about_a_capital() == site.capital
    wait_for(lambda: handed_over(site) > before, 60, "a handoff after the death")


def test_workers_that_wait_do_not_spin(site: DisturbedSite) -> None:
    """No condition says that nothing happens, so this looks at a fixed time, of which a thread that spins takes all."""
    pids = [row["pid"] for name, row in site.served.topology().items() if ":" in name]
    workers = [psutil.Process(pid) for pid in pids]
    before = [sum(one.cpu_times()[:2]) for one in workers]
    signal.sigtimedwait([], 5.0)
    taken = [sum(one.cpu_times()[:2]) - first for one, first in zip(workers, before, strict=True)]
    assert len(taken) == 2 and max(taken) < 2.5, taken


def test_what_a_killed_launch_leaves_is_nothing(site: DisturbedSite) -> None:
    """UCX keeps its shared memory under names in /dev/shm only while it connects."""
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("ucx_shm")]
