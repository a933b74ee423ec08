# SPDX-License-Identifier: Apache-2.0
"""Every configured deadline of a handoff takes effect, and not a module's default (C14, D13)."""

import time
from pathlib import Path

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.transfer.auto_connector import AutoConnector
from pontil.runtime.transfer.tcp.connector import TcpConnector

OURS = Deadlines(
    first_byte_timeout=7000.0,
    kv_handshake_timeout=600.0,
    kv_lease=900.0,
    kv_stall_timeout=500.0,
    kv_transfer_timeout=8000.0,
)


@pytest.fixture
def patient(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> tuple[PromptWorker, PromptWorker]:
    """Return a prefill and a decode worker whose deadlines are all longer than the defaults."""
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", deadlines=OURS)
    decode = open_worker(model, tmp_path, "decode:0", "decode", deadlines=OURS)
    proxy.admit(prefill, decode)
    return prefill, decode


Patient = tuple[PromptWorker, PromptWorker]


def test_the_handshake_and_the_other_half_are_waited_for(proxy: ScriptedProxy, patient: Patient) -> None:  # C14, D13
    prefill, decode = patient
    proxy.workers.remove(prefill)
    begun = time.monotonic()
    proxy.submit_pair(prefill, decode, "r", prompt(30), drawn(4))
    proxy.turn_until(lambda: bool(decode.decode.peers))
    connection = decode.decode.peers[prefill.incarnation]
    decode.decode.tick(begun + OURS.kv_handshake_timeout - 1)
    assert not connection.reason
    decode.decode.tick(time.monotonic() + OURS.kv_handshake_timeout)
    assert "did not answer within 600 s" in connection.reason
    proxy.workers.insert(0, prefill)
    proxy.turn_until(lambda: bool(prefill.prefill.halves))
    prefill.prefill.tick(begun + OURS.first_byte_timeout - 1)
    assert prefill.prefill.halves
    prefill.prefill.tick(time.monotonic() + OURS.first_byte_timeout)
    proxy.turn_until(lambda: "r" in proxy.answers and "within 7000 s" in str(proxy.answers["r"].failures))
    everyone_clean(proxy)


def test_a_transfer_and_its_lease_last_as_long_as_configured(proxy: ScriptedProxy, patient: Patient) -> None:
    """Both sides use the configured values (C14, D13)."""
    prefill, decode = patient
    begun = time.monotonic()
    proxy.submit_pair(prefill, decode, "r", prompt(250), greedy(4))
    proxy.turn_until(lambda: bool(prefill.prefill.jobs.open and decode.decode.parked))
    (sent,), (parked,) = prefill.prefill.kv_sender.open.values(), decode.decode.parked.values()
    assert sent.state is SendState.COMPUTING
    for deadline in (sent.deadline, parked.transfer.deadline):
        assert begun <= deadline - OURS.kv_transfer_timeout <= time.monotonic()
    assert begun <= parked.renew_at - OURS.kv_lease / 3 <= time.monotonic()
    proxy.workers.remove(decode)
    proxy.turn_until(lambda: sent.state is SendState.HELD)
    assert begun <= sent.deadline - OURS.kv_lease <= time.monotonic()
    proxy.workers.append(decode)
    proxy.finish("r")
    everyone_clean(proxy)
    assert decode.decode.kv_receiver.deadlines is OURS


@pytest.mark.parametrize("kind", ["auto", "tcp"])
def test_connectors_know_when_a_peer_stalls(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, kind: str
) -> None:  # C14, D13
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", deadlines=OURS, kv_connector=kind)
    proxy.admit(worker)
    tcp = (
        worker.transfers.transport.ways["tcp"]
        if isinstance(worker.transfers.transport, AutoConnector)
        else worker.transfers.transport
    )
    assert isinstance(tcp, TcpConnector)
    tcp.attach("peer", tcp.register())
    assert tcp.server.stall == OURS.kv_stall_timeout
    assert tcp.streams["peer"].deadlines is OURS
