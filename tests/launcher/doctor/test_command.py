# SPDX-License-Identifier: Apache-2.0
"""The command `pontil doctor`, run as a real process."""

import configparser
import http.server
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from command_line import CORE, ROOT, app
from tiny_llama import write_tiny_llama

from pontil.launcher.doctor import checkup
from pontil.launcher.doctor.checkup import (
    cache_finding,
    memory_findings,
    plan_finding,
    run_examination,
    run_finding,
    serves,
    stream_cores,
)
from pontil.launcher.doctor.command import doctor, lines, summary
from pontil.launcher.doctor.finding import broken, fine
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import LaunchOptions, read_environment, read_options
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.probe.examination import examine

SUBJECTS = [
    "python", "cores", "plan", "port", "open files", "model cache", "run directory", "kv over shm", "kv over nixl",
    "kv over tcp", "torch", "compiler", "kernels", "memory",
]  # fmt: skip
OF_A_MODEL = ["model", "chat template", "model memory", "model speed", "memory of workers"]


def asked(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = app("doctor", "--json", *words)
    told = json.loads(done.stdout)
    assert told["healthy"] == (done.returncode == 0), done.stderr
    return done.returncode, {one["subject"]: one for one in told["findings"]}


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def examined() -> tuple[dict[str, Any], str | None]:
    """The facts that a child with torch reports on this machine, found in this process, which has loaded it."""
    return dict(examine(read_environment().cache_directory)), None


@pytest.fixture
def here(examined: tuple[dict[str, Any], str | None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in this process, which finds what that child told."""
    monkeypatch.setattr(checkup, "run_examination", lambda *_: examined)
    return lambda *words, **variables: CliRunner().invoke(doctor, words, env=variables, standalone_mode=False)


def test_a_machine_that_can_serve(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    code, found = asked("--port", "0", "--role", "mixed", "--model", str(tmp_path / "tiny"))
    assert code == 0, found
    assert list(found) == SUBJECTS + OF_A_MODEL
    for kind in ("shm", "tcp"):
        assert float(found[f"kv over {kind}"]["found"].removesuffix(" GB/s")) > 0
    assert "mixed:0 on cpu" in found["plan"]["found"] or "mixed:0 on cuda" in found["plan"]["found"]
    assert all(one["state"] in ("fine", "absent") or (one["meaning"] and one["mend"]) for one in found.values())


def test_a_model_that_is_not_served_is_broken_and_what_is_missing_is_told(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").unlink()
    weights = tmp_path / "tiny" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    code, found = asked("--port", "0", "--role", "mixed", "--model", str(tmp_path / "tiny"))
    assert code == 1
    assert "damaged or cut off" in found["weights"]["found"] and found["weights"]["state"] == "broken"
    assert "fetch the model's tokenizer.json" in found["tokenizer"]["found"]
    assert "memory of workers" not in found and "model speed" not in found


def test_the_cores_of_a_stream_are_those_that_are_lent(tmp_path: Path) -> None:
    def cores(**flags: str) -> list[int]:
        words = {"prefill": "cpu:0", "decode": "cpu:1"} | flags
        machine = HostDevices((0, 1, 2), 3, 0)
        return stream_cores(plan(read_options(words), machine, Path("/run/x"), tmp_path))

    assert cores() == [0, 1] and cores(lend_cores="false") == [1]


def test_keys_that_a_launch_would_refuse_are_broken(tmp_path: Path) -> None:  # F5
    (tmp_path / "keys").write_text("sk-0123456789abcdef")
    (tmp_path / "keys").chmod(0o644)
    machine, launch_environment = HostDevices((0, 1), 2, 0), LaunchEnvironment({}, 0)
    assert not isinstance(checkup.planned(LaunchOptions(), machine, launch_environment), OptionError)
    for options, said in (
        (LaunchOptions(host="0.0.0.0"), "--api-keys"),
        (LaunchOptions(api_keys=str(tmp_path / "keys")), "chmod 600"),
    ):
        refused = checkup.planned(options, machine, launch_environment)
        assert isinstance(refused, OptionError) and said in refused.message
        assert plan_finding(refused).state == "broken"


def test_what_a_launch_would_refuse_is_broken(taken: int, here: Callable[..., Result]) -> None:
    done = here("--port", str(taken), "--prefill", f"cpu:{CORE}", "--decode", f"cpu:{CORE}")
    assert done.return_value == 1 and done.exception is None
    assert re.search(r"^broken +port +Port \d+ on 127.0.0.1 is in use", done.stdout, re.MULTILINE)
    assert re.search(rf"^broken +plan +Core {CORE} is planned for two workers", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1].startswith("2 broken")


def test_gpus_that_torch_cannot_use_matter_where_they_are_planned(tmp_path: Path, here: Callable[..., Result]) -> None:
    """The machine's GPU is what its driver's tool prints."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0, 80000; echo 1, 80000; echo 2, 80000; echo 3, 80000\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    broken_one, fine_one = (
        here("--port", "0", "--role", "mixed", "--mixed", device, PATH=path) for device in ("3", "cpu")
    )
    assert re.search(r"^broken +torch", broken_one.stdout, re.MULTILINE) and broken_one.return_value == 1
    assert re.search(r"^warning +torch", fine_one.stdout, re.MULTILINE) and fine_one.return_value == 0


def test_a_worker_of_several_ranks_is_explained(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    flags = {"role": "mixed", "model": str(tmp_path / "tiny")}

    def made(devices: str) -> Topology:
        machine = HostDevices((0, 1, 2), 3, 0)
        return plan(read_options(flags | {"mixed": devices}), machine, Path("/run/x"), tmp_path)

    two = made("cpu:0+cpu:1")
    assert plan_finding(two).found == "mixed:0 on cpu (cores 0) and cpu (cores 1) as 2 ranks"
    memory, together = memory_findings(two)
    assert together.state == "fine" and together.found.startswith("all 2 at once: ")
    assert memory.state == "fine" and memory.found.startswith("each of 2 ranks: ") and "weights" in memory.found
    (refusal,) = memory_findings(made("cpu:0+cpu:1+cpu:2"))
    assert refusal.state == "broken" and "cannot be divided over 3 devices" in refusal.found
    (one,) = memory_findings(made("cpu:0"))
    assert one.subject == "memory of workers" and one.found.startswith("each worker: ")
    assert not list(memory_findings(OptionError("no plan")))


def test_options_that_cannot_be_read_are_no_finding() -> None:
    done = app("doctor", "--port", "x")
    assert (done.returncode, done.stdout) == (2, "") and "--port must be" in done.stderr


def test_a_server_of_ours_is_told_from_others(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "ANSWER_TIMEOUT", 0.2)
    assert not serves(LaunchOptions(port=taken))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "alive"}' if self.path == "/health" else b"[]")

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        assert serves(LaunchOptions(port=server.server_port))
        thread.join(60)


def test_places_that_are_not_there_yet_are_judged_by_where_they_would_be(tmp_path: Path) -> None:
    assert cache_finding(tmp_path / "a" / "b").state in ("fine", "warning")
    assert not (tmp_path / "a").exists()
    assert cache_finding(Path("/proc/none")).state == run_finding(Path("/proc/none/run")).state == "broken"


@pytest.mark.parametrize(
    ("script", "told", "failure"),
    [
        ("print('[\"torch\", {}]')", {"torch": {}}, None),
        (
            "print('[\"torch\", {}]'); raise ImportError('no zmq')",
            {"torch": {}},
            "ended with code 1: ImportError: no zmq",
        ),
        ("import os; os.kill(os.getpid(), 11)", {}, "ended with code -11: it said nothing"),
        ("while True: pass", {}, "ended with code -9: it did not end within 1 s"),
    ],
)
def test_a_child_that_ends_badly_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, script: str, told: dict[str, Any], failure: str | None
) -> None:
    if "while" in script:
        monkeypatch.setattr(checkup, "EXAMINATION_TIMEOUT", 1.0)
    assert run_examination([sys.executable, "-c", script], dict(read_environment().variables)) == (told, failure)


def test_every_package_that_is_declared_is_looked_for() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    declared = {re.split(r"[><=;]", line)[0] for line in config["options"]["install_requires"].split("\n") if line}
    names = {"pyzmq": "zmq", "prometheus-client": "prometheus_client"}
    assert sorted(names.get(name, name) for name in declared - {"tomli"}) == sorted(checkup.PACKAGES)


def test_a_finding_is_lines_that_a_terminal_can_hold() -> None:
    long = "word " * 60
    shown = [click.unstyle(line) for line in lines(broken("port", long, long, "do this"))]
    assert all(len(line) <= 100 for line in shown) and shown[-1].split() == ["mend", "do", "this"]
    assert "means" in "".join(shown)
    assert [click.unstyle(line).split() for line in lines(fine("port", "x"))] == [["fine", "port", "x"]]
    assert summary(0, 0) == "a launch can work here" and summary(1, 2).startswith("1 broken, 2 to think about")
