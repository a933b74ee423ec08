# SPDX-License-Identifier: Apache-2.0
"""A closed worker leaves nothing behind."""

from pathlib import Path

import pytest
from open_resources import nothing_left
from pools import need
from workers import ScriptedProxy, everyone_clean, greedy, open_worker, prompt


def serve(model: Path, folder: Path, connector: str) -> None:
    """Open a pair, hand a request over, and close."""
    proxy = ScriptedProxy(folder)
    prefill = open_worker(model, folder, "prefill:0", "prefill", kv_connector=connector)
    decode = open_worker(model, folder, "decode:0", "decode", kv_connector=connector)
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), greedy(4))
    proxy.finish("r")
    everyone_clean(proxy)
    proxy.close()


@pytest.mark.parametrize("connector", ["tcp", "auto", "nixl"])
def test_closing_leaves_no_thread_no_descriptor_and_no_memory(
    model: Path, tmp_path: Path, connector: str
) -> None:  # D5
    """A second run must not add any: the first one also opens what the process keeps until its end. `auto` opens shared
    memory too."""
    need(connector)
    serve(model, tmp_path, connector)
    with nothing_left():
        serve(model, tmp_path, connector)
