# SPDX-License-Identifier: Apache-2.0
"""Incompatible workers: the handshake and the registration say what differs (C8)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernels import opened as kernels_here
from workers import PromptWorker, ScriptedProxy, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.errors import IncompatiblePeer
from pontil.runtime.wire.messages import SCHEMA, Greet, Refused, Welcome
from pontil.runtime.worker.links.peer_connection import HandshakeState


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"block_size": 32}, "decode:0 has block size 32 but the prefill worker has 16: start it with --block-size 16"),
        (
            {"block_size": 8, "dtype": "bfloat16"},
            "decode:0 has dtype bfloat16 and block size 8 but the prefill worker has float32 and 16: "
            "start it with --dtype float32 and --block-size 16",
        ),
        (
            {"kv_cache_dtype": "int8"},
            "decode:0 has KV cache dtype int8 but the prefill worker has auto: start it with --kv-cache-dtype auto",
        ),
    ],
)
def test_the_handshake_names_what_differs(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:  # C8
    """Registration refuses such a pair; workers of different proxies may still meet."""
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", dtype="float32")
    decode = open_worker(model, tmp_path, "decode:0", "decode", **({"dtype": "float32"} | settings))
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), greedy(4))
    (answer,) = proxy.finish("r")
    assert says in [failure.reason for failure in answer.failures]
    assert decode.decode.peers[prefill.incarnation].state is HandshakeState.FAILED
    proxy.cancel(prefill, "r")
    everyone_clean(proxy)


def test_the_handshake_compares_what_computes(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:  # C8
    kernels_here()
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill")
    decode = open_worker(model, tmp_path, "decode:0", "decode", kernels="torch")
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), greedy(4))
    (answer,) = proxy.finish("r")
    assert (
        f"decode:0 has kernels torch but the prefill worker has {prefill.machine.kernels}: "
        "start it with the same --kernels and --quantization"
    ) in [failure.reason for failure in answer.failures]
    proxy.cancel(prefill, "r")
    everyone_clean(proxy)


def test_a_peer_of_another_version_is_told_so(pair: tuple[PromptWorker, PromptWorker]) -> None:
    prefill, decode = pair
    machine = prefill.machine
    greet = Greet("d", prefill.incarnation, SCHEMA, "decode:7", machine.fingerprint, machine.layout.fingerprint())
    assert prefill.prefill.answer(greet).pool is not None, "an older one does not say what computes"
    on_gpu = prefill.prefill.answer(replace(greet, kernels="torch/cuda:NVIDIA H200")).reason
    assert on_gpu is not None and "start it with a device of the same kind" in on_gpu
    newer = prefill.prefill.answer(replace(greet, schema=SCHEMA + 1, model_fingerprint="", kv_fingerprint=""))
    assert newer.pool is None and newer.reason == (
        f"decode:7 speaks version {SCHEMA + 1} of the protocol and the prefill worker version {SCHEMA}: "
        "install the same version of pontil for both"
    )
    model = prefill.prefill.answer(replace(greet, model_fingerprint="other")).reason
    assert model is not None and "has model other but" in model and machine.fingerprint in model


def test_a_refused_worker_ends_with_the_reason(pair: tuple[PromptWorker, PromptWorker]) -> None:
    worker, _ = pair
    with pytest.raises(IncompatiblePeer, match="refused this worker: another dtype"):
        worker.hear(Refused("new", worker.incarnation, "another dtype"), 0.0)
    worker.hear(Welcome("proxy", worker.incarnation), 0.0)
