# SPDX-License-Identifier: Apache-2.0
"""Two real workers whose link the supervisor cuts: the answer is the same, computed where it was needed."""

import json
import logging
import os
import time
from pathlib import Path

from workers import ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.transfer.cut_connector import CutConnector
from pontil.runtime.worker.process.loop import SupervisorCommands


def obeyed(commands: SupervisorCommands, writing: int, seconds: float) -> None:
    os.write(writing, json.dumps({"kind": "cut", "seconds": seconds}).encode() + b"\n")
    commands.obey(time.monotonic())


def test_answers_are_the_same_over_a_link_that_is_cut_and_mended(
    proxy: ScriptedProxy, model: Path, tmp_path: Path
) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill")
    decode = open_worker(model, tmp_path, "decode:0", "decode", allow_chaos=True)
    assert isinstance(decode.transfers.transport, CutConnector)
    assert not isinstance(prefill.transfers.transport, CutConnector) and not prefill.worker.trials
    proxy.admit(prefill, decode)
    reading, writing = os.pipe()
    pipe = CommandPipe(reading, logging.getLogger("pontil.worker"))
    commands = SupervisorCommands(pipe, decode.poller, decode.assigned_role, decode.worker.trials)
    proxy.submit(decode, "whole", prompt(60), drawn(8))
    (whole,) = proxy.finish("whole")
    for name, seconds, failed in (("cut", 60.0, 1), ("mended", 0.0, 1)):
        obeyed(commands, writing, seconds)
        proxy.submit_pair(prefill, decode, name, prompt(60), drawn(8))
        (answer,) = proxy.finish(name)
        # The worker that was asked for it computes the prompt itself where it has the Handoff, else it says so.
        assert answer.failures or answer.ids == whole.ids
        assert decode.decode.counts.failed == failed
    assert not answer.failures and answer.ids == whole.ids and decode.decode.counts.complete == 1
    everyone_clean(proxy)
    os.close(writing)
    commands.obey(time.monotonic())
    os.close(reading)
