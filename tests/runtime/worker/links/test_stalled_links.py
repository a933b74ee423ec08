# SPDX-License-Identifier: Apache-2.0
"""A worker whose links the supervisor stalls: it computes on, and all that waited arrives in order."""

import json
import logging
import os
import time
from pathlib import Path

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.worker.links.stalled_links import StalledLinks
from pontil.runtime.worker.process.loop import SupervisorCommands


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_nothing_passes_while_a_worker_is_stalled_and_nothing_is_lost(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, role: str
) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", allow_chaos=True)
    decode = open_worker(model, tmp_path, "decode:0", "decode", allow_chaos=True)
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "before", prompt(60), drawn(8), salt="none")
    (before,) = proxy.finish("before")
    everyone_clean(proxy)
    worker = prefill if role == "prefill" else decode
    at = [time.monotonic()]
    worker.stalls.clock = lambda: at[0]
    worker.stalls.stall(60.0)
    proxy.submit_pair(prefill, decode, "waits", prompt(60), drawn(8), salt="none")
    heard = [beat for name, beat in proxy.heartbeats.items() if name == worker.incarnation]
    for _ in range(50):
        worker.turn()
        worker.machine.pool.check()
    assert not worker.requests and {*worker.sockets.opened} <= set(worker.stalls.held)
    assert heard == [beat for name, beat in proxy.heartbeats.items() if name == worker.incarnation]
    at[0] += 60.0
    worker.stalls.tick(at[0])
    (answer,) = proxy.finish("waits")
    assert answer.ids == before.ids and not answer.failures and not worker.stalls.held
    everyone_clean(proxy)


def test_only_a_worker_for_trials_can_be_stalled(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    plain = open_worker(model, tmp_path, "decode:0", "decode")
    trial = open_worker(model, tmp_path, "decode:1", "decode", allow_chaos=True)
    proxy.admit(plain, trial)

    def order(worker: PromptWorker, seconds: float) -> None:
        reading, writing = os.pipe()
        pipe = CommandPipe(reading, logging.getLogger("pontil.worker"))
        commands = SupervisorCommands(pipe, worker.poller, worker.assigned_role, worker.worker.trials)
        os.write(writing, json.dumps({"kind": "stall", "seconds": seconds}).encode() + b"\n")
        commands.obey(time.monotonic())
        os.close(writing)
        commands.obey(time.monotonic())
        os.close(reading)

    order(plain, 60.0)
    assert not plain.stalls.held
    order(trial, 60.0)
    assert trial.stalls.held
    order(trial, 0.0)
    assert not trial.stalls.held and isinstance(trial.stalls, StalledLinks)
    everyone_clean(proxy)
