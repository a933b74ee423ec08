# SPDX-License-Identifier: Apache-2.0
"""The roles as separate launches on one host: they find each other without configuration, in any order."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forked_program import fork_program
from served import APP, START_TIMEOUT, Served, free_port, wait_for
from tiny_llama import write_tiny_llama

from pontil.launcher.host.devices import find_machine

CORES = find_machine("").affordable
# Each launch of one phase has its part of them, as if one launch had both.
HALF = (len(CORES) + 1) // 2
PARTS = {"prefill": set(CORES[:HALF]), "decode": set(CORES[HALF:])}
PAIR = [("prefill:0>decode:0", "PASSED")]
HANDOFFS = 'pontil_handoffs_total{result="complete"}'


@dataclass
class Host:
    """The launches of one user, with run directories in a folder of their own."""

    folder: Path
    model: Path
    port: int = field(default_factory=free_port)
    running: dict[str, Served] = field(default_factory=dict)

    def launch(self, role: str) -> None:
        number = sum(path.name.startswith(role) for path in self.folder.iterdir())
        output = self.folder / f"{role}.{number}"
        port = ("--port", str(self.port)) if role == "proxy" else ()
        words = ("--role", role, *port, "--model", str(self.model), "--kv-connector", "shm")
        around = {**os.environ, "PONTIL_KV_CACHE_MEMORY": "8MiB", "XDG_RUNTIME_DIR": str(self.folder)}
        with output.open("wb") as file, open(os.devnull) as nothing:
            files = [nothing.fileno(), file.fileno(), file.fileno()]
            process = fork_program([str(APP), "launch", *words], self.folder, files, around)
        self.running[role] = Served(process, self.port, output, self.folder / "usage.db")

    def said(self, role: str) -> str:
        return self.running[role].output.read_text()

    def wait_until_said(self, role: str, text: str, timeout: float = 60.0) -> None:
        wait_for(lambda: text in self.said(role), timeout, f"{text!r} of {role}")

    def pair_works(self) -> bool:
        ended = [role for role, one in self.running.items() if one.process.poll() is not None]
        assert not ended, f"{ended} ended:\n" + "\n".join(self.said(role) for role in ended)
        try:
            table = self.running["proxy"].get("/admin/topology")
        except (OSError, json.JSONDecodeError):
            return False
        return [(row["route"], row["state"]) for row in table["routes"]] == PAIR

    def answer(self) -> list[int]:
        """Return the ids of one request with a handoff between the launches: the second that this proxy counts. It
        counts nothing of what the workers did before it came."""
        wait_for(self.pair_works, START_TIMEOUT, "a pair that was tested")
        proxy = self.running["proxy"]
        wait_for(lambda: proxy.metric(HANDOFFS) == 1, 60, "the count of the self-test's handoff")
        reply = proxy.request(
            "POST", "/v1/completions",
            {"model": self.model.name, "prompt": [7, 8, 9] * 20, "max_tokens": 6, "temperature": 0,
             "ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        assert reply.header("x-pontil-route") == "prefill:0>decode:0"
        wait_for(lambda: proxy.metric(HANDOFFS) == 2, 60, "the count of the handoff")
        ids: list[int] = reply.json()["choices"][0]["token_ids"]
        assert len(ids) == 6
        return ids

    def stop(self) -> None:
        for one in self.running.values():
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGINT)
        for one in self.running.values():
            try:
                one.process.wait(30)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()


@contextmanager
def host(folder: Path, model: Path) -> Iterator[Host]:
    made = Host(folder, model)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_llama(folder)
    return folder


@pytest.mark.parametrize(
    ("first", "last", "silent"),
    [("decode", "prefill", False), pytest.param("prefill", "decode", True, marks=pytest.mark.long)],
)
def test_workers_find_the_proxy_whenever_it_comes(
    tmp_path: Path, tiny: Path, first: str, last: str, silent: bool
) -> None:  # C12
    """One worker waits for the proxy, the other finds it there, and each has cores of its own, which nobody named. The
    next proxy comes at once, or when the workers have missed the first one: after most of a minute."""
    with host(tmp_path, tiny) as one:
        one.launch(first)
        one.wait_until_said(first, "registering with the proxy", START_TIMEOUT)
        assert f"no proxy answers at {tmp_path}/pontil/control yet: waiting for one" in one.said(first)
        one.launch("proxy")
        one.wait_until_said("proxy", "ready on http", START_TIMEOUT)
        one.launch(last)
        ids = one.answer()
        assert "no proxy answers" not in one.said(last)
        for role in (first, last):
            one.wait_until_said(role, "ready, joined ipc://")
        workers = [one.running[role].tree()[-1].pid for role in (first, last)]
        assert {role: os.sched_getaffinity(pid) for role, pid in zip((first, last), workers, strict=True)} == PARTS
        assert not any("another launch computes on" in one.said(role) for role in (first, last))
        proxy = one.running["proxy"].process
        proxy.kill()
        proxy.wait()
        if silent:
            for role in (first, last):
                one.wait_until_said(role, "the proxy is gone")
        one.launch("proxy")
        assert one.answer() == ids
        for role in (first, last):
            one.wait_until_said(role, "the proxy is gone")
        assert workers == [one.running[role].tree()[-1].pid for role in (first, last)], "the same processes"
