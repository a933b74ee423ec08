# SPDX-License-Identifier: Apache-2.0
"""Launches of one worker: it serves whole requests, and whichever signal ends the launch, nothing is left."""

import signal
from pathlib import Path

import psutil
import pytest
from process_state import has_ended
from served import launched, wait_for

from pontil.launcher.tools.chaos.launch_rest import unused_segments

SHORT = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}


def traces(pids: set[int], port: int) -> list[str]:
    """Return what is left of a launch: processes, its port, sockets in its run directory."""
    left = [f"process {pid}" for pid in pids if not has_ended(pid)]
    listening = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == "LISTEN"}
    return left + ([f"port {port}"] if port in listening else [])


@pytest.mark.parametrize(
    ("flags", "kept", "number"),
    [
        (("--decode", "none"), "prefill:0", signal.SIGTERM),
        pytest.param(("--prefill", "none"), "decode:0", signal.SIGINT, marks=pytest.mark.long),
        # Every run serves with mixed workers elsewhere, and kills a launcher in tests/system/test_random_kills.py.
        pytest.param(("--role", "mixed"), "mixed:0", signal.SIGKILL, marks=pytest.mark.long),
    ],
    ids=["prefill-SIGTERM", "decode-SIGINT", "mixed-SIGKILL"],
)
def test_one_worker_serves_whole_requests_and_nothing_is_left_of_its_launch(
    tmp_path: Path, model: str, flags: tuple[str, ...], kept: str, number: signal.Signals
) -> None:  # C12, G4
    segments = unused_segments()
    with launched(tmp_path, "--model", model, *flags) as served:
        assert set(served.topology()) == {"proxy", kept}
        reply = served.request("POST", "/v1/completions", {"model": Path(model).name, "prompt": [5, 6, 7]} | SHORT)
        assert reply.header("x-pontil-route") == kept
        assert reply.json()["usage"]["completion_tokens"] == 16
        pids = {process.pid for process in served.tree()}
        assert len(pids) == 4
        served.process.send_signal(number)
        served.process.wait(40)
        wait_for(lambda: not traces(pids, served.port), 10, "the end of every process")
        assert served.process.returncode == {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert unused_segments() <= segments
