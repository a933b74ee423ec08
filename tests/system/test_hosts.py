# SPDX-License-Identifier: Apache-2.0
"""Roles on different hosts: three network namespaces, joined by a bridge, which this test creates and removes."""

import json
import re
import socket
import threading
from itertools import count
from pathlib import Path

import msgpack
import psutil
import pytest
from network_hosts import CONTROL, FAR, MARK, NAMES, NET, Hosts
from nixl_process import NixlProcess
from pools import need
from served import START_TIMEOUT, wait_for
from tiny_llama import write_tiny_llama

from pontil.launcher.keys.key_file import make_key_file, read_key_file
from pontil.runtime.disaggregation.receiver import DRAIN_TIMEOUT

# Not in Python's socket module; exceeds the limit for unprivileged processes, so that no packet is lost between reads.
SO_RCVBUFFORCE = 33
# ETH_P_ALL
EVERY_PROTOCOL = 3
NAME = "smollm2-135m-instruct"


class Wire:
    """All traffic on the bridge while the context lasts."""

    def __init__(self, hosts: Hosts) -> None:
        self.seen = bytearray()
        # Link-layer sockets without a protocol: with one, they would capture other traffic of this machine until they
        # are bound.
        self.sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in NAMES]
        for name, one in zip(NAMES, self.sockets, strict=True):
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            one.bind((hosts.link(name), EVERY_PROTOCOL))
            one.settimeout(0.2)
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.listen, args=(one,), daemon=True) for one in self.sockets]

    def listen(self, one: socket.socket) -> None:
        while not self.over.is_set():
            try:
                self.seen += one.recv(1 << 17)
            except TimeoutError:
                continue

    def __enter__(self) -> bytearray:
        for thread in self.threads:
            thread.start()
        return self.seen

    def __exit__(self, *what: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(5)
        for one in self.sockets:
            one.close()


def answered(hosts: Hosts, is_real: bool) -> bytes:
    """Send one request through both workers; return the bytes that an eavesdropper on the network would look for.
    `is_real`: the model knows something."""

    def tested() -> list[tuple[str, str]]:
        answer = hosts.fetch("/admin/topology")
        return [(row["route"], row["state"]) for row in json.loads(answer)["routes"]] if answer else []

    wait_for(lambda: tested() == [("prefill:0>decode:0", "PASSED")], START_TIMEOUT, "a pair that was tested")  # G2
    wait_for(lambda: complete(hosts) > 0, 60, "the count of the self-test's handoff")
    before = complete(hosts)
    body = {
        "model": NAME, "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    answer = json.loads(hosts.fetch("/v1/completions", body))
    assert answer["choices"][0]["text"].startswith(" Paris") or not is_real
    assert answer["usage"]["completion_tokens"] == 5
    wait_for(lambda: complete(hosts) > before, 60, "the count of the handoff")
    ids = json.loads(hosts.fetch("/tokenize", {"prompt": body["prompt"]}))["tokens"]
    packed: bytes = msgpack.packb(ids)
    return packed


@pytest.mark.long
def test_roles_on_three_hosts_form_one_system(hosts: Hosts, tmp_path: Path) -> None:  # C12
    hosts.launch("proxy", tmp_path / "proxy", "--control", CONTROL, "--insecure")
    hosts.launch("prefill", tmp_path / "prefill", *FAR, "--insecure", "--prefill", "cpu:0")
    hosts.launch("decode", tmp_path / "decode", *FAR, "--insecure", "--decode", "cpu:1")
    with Wire(hosts) as seen:
        prompt = answered(hosts, is_real=True)
    assert MARK.encode() in seen and prompt in seen, "in the clear, as was said: what follows would see it"


def test_with_keys_nobody_else_can_read_or_join(hosts: Hosts, tmp_path: Path, model: str) -> None:  # C12
    for name in ("ours", "theirs"):
        make_key_file(tmp_path / name)
    keys = ("--keys", str(tmp_path / "ours"))
    small = ("--model", model, "--served-model-name", NAME)
    hosts.launch("proxy", tmp_path / "proxy", "--control", CONTROL, *keys, *small)
    strangers = {
        tmp_path / name: hosts.launch("decode", tmp_path / name, *FAR, *wrong, "--model", model, "--decode", "cpu:1")
        for name, wrong in (("stranger", ("--keys", str(tmp_path / "theirs"))), ("unarmed", ("--insecure",)))
    }
    for log, stranger in strangers.items():
        assert stranger.wait(START_TIMEOUT) == 2
        said = log.read_text().splitlines()[-1]
        assert f"the proxy at {CONTROL} does not accept this worker's keys" in said and "Traceback" not in said
    assert hosts.process_names() == {"proxy"}
    hosts.launch("prefill", tmp_path / "prefill", *FAR, *keys, *small, "--prefill", "cpu:0")
    hosts.launch("decode", tmp_path / "decode", *FAR, *keys, *small, "--decode", "cpu:1")
    with Wire(hosts) as seen:
        prompt = answered(hosts, is_real=False)
    assert len(seen) > 1000 and MARK.encode() not in seen and prompt not in seen
    assert b"prefill:0" not in seen and b"smollm2" not in seen
    check_nobody_tells(read_key_file(tmp_path / "ours"), hosts, tmp_path)


def complete(hosts: Hosts) -> float:
    """Return how many handoffs were complete."""
    told = re.search(r'^pontil_handoffs_total{result="complete"} (\S+)', hosts.fetch("/metrics") or "", re.M)
    return float(told[1]) if told else 0.0


@pytest.mark.long
def test_a_read_over_nixl_ends_behind_a_cut_link(hosts: Hosts) -> None:  # C14
    need("nixl")
    owner = NixlProcess("own", f"{NET}.2", hosts.inside("prefill"))
    reader = NixlProcess("pull", f"{NET}.3", hosts.inside("decode"))
    try:
        reader.tell(owner.hear())
        assert reader.hear() == "a part"
        hosts.cut("prefill")
        error, seconds = reader.hear()
        assert error is not None and "cannot be reached any more" in error
        assert seconds < DRAIN_TIMEOUT, "a worker would have been ended for it"
    finally:
        owner.end()
        reader.end()


@pytest.mark.long
def test_blocks_go_over_nixl_between_hosts_and_a_cut_link_ends_no_worker(
    hosts: Hosts, tmp_path: Path, model: str
) -> None:
    """UCX is told to use TCP: the namespaces share one kernel, where it would find the peer's memory."""
    need("nixl")
    write_tiny_llama(tmp_path / "small", num_layers=12, max_model_len=2048, dtype="bfloat16")
    small = ("--model", str(tmp_path / "small"), "--served-model-name", NAME, "--insecure")
    far = ("--join", CONTROL, "--kv-connector", "nixl", *small)
    hosts.launch("proxy", tmp_path / "proxy", "--control", CONTROL, "--disagg", "always", *small)
    hosts.launch("prefill", tmp_path / "prefill", *far, "--prefill", "cpu:0", UCX_TLS="tcp")
    hosts.launch("decode", tmp_path / "decode", *far, "--decode", "cpu:1", UCX_TLS="tcp")
    wait_for(lambda: complete(hosts) > 0, START_TIMEOUT, "the handoff of the self-test")

    def ask(number: int) -> list[str]:
        body = {"model": NAME, "prompt": [20 + (number + 13 * i) % 240 for i in range(1500)], "temperature": 0}
        fetched = hosts.fetch("/v1/completions", body | {"max_tokens": 8, "ignore_eos": True})
        return [choice["text"] for choice in json.loads(fetched)["choices"]] if fetched else []

    expected = [ask(number) for number in range(4)]
    assert all(expected) and complete(hosts) >= 4
    pids = [row["pid"] for row in json.loads(hosts.fetch("/admin/topology"))["processes"] if row["name"] == "decode:0"]
    stop = threading.Event()
    told: list[list[str]] = []

    def load() -> None:
        for number in count(4):
            if stop.is_set():
                return
            told.append(ask(number))

    threads = [threading.Thread(target=load, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = complete(hosts)
    wait_for(lambda: complete(hosts) > before + 2, 60, "handoffs under load")
    hosts.cut("prefill")
    seen = len(told)
    wait_for(lambda: len([one for one in told[seen:] if one]) > 3, 90, "answers without the prefill worker")
    # Longer than a decode worker waits for reads that do not end.
    assert not stop.wait(DRAIN_TIMEOUT + 5)
    hosts.cut("prefill", "up")
    before = complete(hosts)
    wait_for(lambda: complete(hosts) > before + 2, 90, "handoffs over the mended link")
    stop.set()
    for thread in threads:
        thread.join(60)
    assert [ask(number) for number in range(4)] == expected
    now = [row["pid"] for row in json.loads(hosts.fetch("/admin/topology"))["processes"] if row["name"] == "decode:0"]
    assert now == pids, "the decode worker was not ended"


def check_nobody_tells(secret: str, hosts: Hosts, logs: Path) -> None:
    """Check that the secret is in its file only: in no log, no command line, no environment and no page."""
    told = [(logs / name).read_text() for name in NAMES] + [hosts.fetch("/admin/topology"), hosts.fetch("/metrics")]
    for launcher in hosts.launchers:
        if launcher.poll() is None:
            tree = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
            told += [f"{process.cmdline()} {process.environ()}" for process in tree]
    assert len(told) > 7 and not [text for text in told if secret in text or secret[:24] in text]
