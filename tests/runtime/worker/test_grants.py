# SPDX-License-Identifier: Apache-2.0
"""A handoff across a network that has keys: with the proxy's secret for the transfer, and not without."""

from pathlib import Path
from typing import Any

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

KEYS = "01" * 32
SECRET = "ab" * 32


@pytest.fixture
def far(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> tuple[PromptWorker, PromptWorker]:
    """Open workers as on two hosts, except that their sockets are files."""
    settings: dict[str, Any] = {"kv_connector": "tcp", "keys": KEYS}
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", **settings)
    decode = open_worker(model, tmp_path, "decode:0", "decode", **settings)
    proxy.admit(prefill, decode)
    return prefill, decode


def passes_are_closed(prefill: PromptWorker) -> bool:
    assert prefill.sockets.keys is not None
    return not prefill.transfers.pools.grants.opened


@pytest.mark.parametrize("length", [7, 16, 200])
def test_with_the_secret_a_handoff_is_like_any_other(
    proxy: ScriptedProxy, far: tuple[PromptWorker, PromptWorker], length: int
) -> None:
    prefill, decode = far
    proxy.submit(decode, "whole", prompt(length), drawn(8))
    proxy.submit_pair(prefill, decode, "split", prompt(length), drawn(8), transfer_secret=SECRET)
    whole, split = proxy.finish("whole", "split")
    assert split.ids == whole.ids
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (1, 0) and passes_are_closed(prefill)


@pytest.mark.parametrize("theirs", [None, "cd" * 32], ids=["none", "another"])
@pytest.mark.parametrize("ours", [SECRET, None], ids=["told", "not told"])
def test_without_it_no_block_moves_and_the_prompt_is_computed_again(
    proxy: ScriptedProxy, far: tuple[PromptWorker, PromptWorker], ours: str | None, theirs: str | None
) -> None:
    prefill, decode = far
    common = {"request_id": "split", "attempt": 0, "prompt": prompt(7), "sampling": drawn(8).to_wire()}
    common["cache_salt"] = "split"
    proxy.submit(decode, "whole", prompt(7), drawn(8))
    proxy.submit_halves(prefill, decode, common | {"transfer_secret": ours}, common | {"transfer_secret": theirs})
    whole, split = proxy.finish("whole", "split")
    assert split.ids == whole.ids
    everyone_clean(proxy)
    counts = decode.decode.counts
    assert (counts.complete, counts.failed, counts.bytes) == (0, 1, 0) and passes_are_closed(prefill)


def test_a_transfer_that_is_cancelled_closes_its_pass(
    proxy: ScriptedProxy, far: tuple[PromptWorker, PromptWorker]
) -> None:
    prefill, decode = far
    proxy.submit_pair(prefill, decode, "r", prompt(200), drawn(50), transfer_secret=SECRET)
    proxy.turn_until(lambda: not passes_are_closed(prefill))
    for worker in far:
        proxy.cancel(worker, "r")
    everyone_clean(proxy)
    assert passes_are_closed(prefill)


@pytest.mark.parametrize("theirs", [SECRET, None, "cd" * 32], ids=["the same", "none", "another"])
def test_a_kept_prompt_is_read_with_its_secret_only(
    proxy: ScriptedProxy, far: tuple[PromptWorker, PromptWorker], theirs: str | None
) -> None:
    prefill, decode = far
    kept: dict[str, Any] = {"phase": "hold", "transfer_id": "t", "transfer_secret": SECRET}
    proxy.submit(prefill, "first", prompt(40), drawn(1), **kept)
    proxy.finish("first")
    claim = kept | {"phase": "claim", "peer": prefill.incarnation, "peer_endpoint": prefill.peers_in.endpoint}
    proxy.submit(decode, "whole", prompt(40), drawn(8))
    proxy.submit(decode, "second", prompt(40), drawn(8), **(claim | {"transfer_secret": theirs}))
    whole, second = proxy.finish("whole", "second")
    assert second.ids == whole.ids
    everyone_clean(proxy)
    counts = decode.decode.counts
    assert (counts.complete, counts.failed) == ((1, 0) if theirs == SECRET else (0, 1)) and passes_are_closed(prefill)
