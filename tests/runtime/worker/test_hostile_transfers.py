# SPDX-License-Identifier: Apache-2.0
"""Two real workers whose transfers fail in every way: the answer is the same or the proxy is told of a failure, and
both pools are complete again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from effort import by_default
from hostile_connector import FINITE, HostileConnector, Mischief
from pools import need
from workers import HostileWorker, PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.disaggregation import receiver as kv_receiver
from pontil.runtime.errors import TransferError

HARMLESS = (Mischief.NONE, Mischief.DELAY, Mischief.LATE, Mischief.TWICE, Mischief.STRANGER)


@pytest.fixture(params=["shm", "nixl"])
def hostile(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[PromptWorker, PromptWorker, HostileConnector]:
    """Open a prefill worker, a decode worker, and the hostile connector of the latter."""
    need(request.param)
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", kv_connector=request.param)
    decode = open_worker(model, tmp_path, "decode:0", "decode", HostileWorker, kv_connector=request.param)
    proxy.admit(prefill, decode)
    connector = decode.transfers.transport
    assert isinstance(connector, HostileConnector)
    return prefill, decode, connector


Hostile = tuple[PromptWorker, PromptWorker, HostileConnector]


@pytest.fixture
def brief(hostile: "Hostile") -> Callable[[Mischief], None]:
    """Shorten the stall timeout where a pull stalls; elsewhere a slow machine must not look like a stall."""

    def chosen(kind: Mischief) -> None:
        if kind is Mischief.STALL:
            receiving = hostile[1].decode.kv_receiver
            receiving.deadlines = replace(receiving.deadlines, kv_stall_timeout=0.2)

    return chosen


@pytest.mark.parametrize("kind", FINITE)
def test_an_answer_is_the_same_when_its_last_pull_goes_wrong(
    proxy: ScriptedProxy, hostile: Hostile, kind: Mischief, brief: Callable[[Mischief], None]
) -> None:
    """The last pull of a prompt fails when the Handoff is here already, so the prompt is computed again on the decode
    worker."""
    prefill, decode, connector = hostile
    brief(kind)
    connector.choose = lambda: kind
    proxy.submit(decode, "whole", prompt(60), drawn(8))
    proxy.submit_pair(prefill, decode, "split", prompt(60), drawn(8))
    split, whole = proxy.finish("split", "whole")
    assert split.ids == whole.ids and not split.failures
    assert split.frames[-1].generated_tokens == 7
    everyone_clean(proxy)
    counts = decode.decode.counts
    assert (counts.complete, counts.failed) == ((1, 0) if kind in HARMLESS else (0, 1))
    (opening,) = [frame for frame in split.frames if frame.pulled_bytes is not None]
    assert (opening.pulled_bytes != 0, opening.pull_error is None) == ((kind in HARMLESS,) * 2)


@pytest.mark.parametrize("kind", [kind for kind in FINITE if kind not in HARMLESS])
def test_a_transfer_that_goes_wrong_before_the_handoff_is_the_proxys_business(
    proxy: ScriptedProxy, hostile: Hostile, kind: Mischief, brief: Callable[[Mischief], None]
) -> None:
    """A pull before the Handoff fails, while prefill waits after its first chunk: only the proxy starts another
    attempt."""
    prefill, decode, connector = hostile
    free = [worker.machine.pool.available for worker in proxy.workers]
    brief(kind)
    connector.choose = lambda: kind
    proxy.submit_pair(prefill, decode, "r", prompt(250), drawn(8))
    # The sockets' threads decide whether decode has received the first chunk by then.
    proxy.turn_until(lambda: any(job.sent.announced for job in prefill.prefill.jobs.open.values()))
    proxy.workers.remove(prefill)
    proxy.turn_until(lambda: bool(proxy.answers.get("r") and proxy.answers["r"].failures))
    proxy.workers.insert(0, prefill)
    assert proxy.answers["r"].failures[0].sender == decode.incarnation
    proxy.cancel(prefill, "r")
    everyone_clean(proxy)
    assert [worker.machine.pool.available for worker in proxy.workers] == free


@pytest.mark.parametrize("kind", by_default({*FINITE} - {*HARMLESS} | {Mischief.LATE}, FINITE))
def test_a_cancelled_transfer_leaves_nothing_whatever_its_pull_does(
    proxy: ScriptedProxy, hostile: Hostile, kind: Mischief, brief: Callable[[Mischief], None]
) -> None:
    prefill, decode, connector = hostile
    brief(kind)
    connector.choose = lambda: kind
    for number in range(4):
        name = f"r{number}"
        proxy.submit_pair(prefill, decode, name, prompt(250), drawn(300))
        for _ in range(8 * number):
            for worker in proxy.workers:
                worker.turn()
        proxy.cancel(prefill, name)
        proxy.cancel(decode, name)
    everyone_clean(proxy)


def test_a_copier_that_does_not_end_ends_the_worker(
    proxy: ScriptedProxy, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:  # C14
    prefill, decode, connector = hostile
    monkeypatch.setattr(kv_receiver, "DRAIN_TIMEOUT", 0.1)
    prefill.prefill.kv_sender.deadlines = Deadlines(kv_lease=0.2)
    connector.choose = lambda: Mischief.STUCK
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(8))
    with pytest.raises(TransferError, match="memory that is being written to"):
        proxy.turn_until(lambda: False)
    proxy.workers.remove(decode)
    decode.close()
    everyone_clean(proxy)
