# SPDX-License-Identifier: Apache-2.0
"""`pontil chaos` on a real launch: it holds under faults, a wrong answer breaks it, Ctrl-C undoes everything."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import disturbed
import psutil
import pytest
from forked_program import fork_program, run_program
from process_state import status_of
from relay import Relay
from served import APP, Served, launched, wait_for
from small_disk import small_disk

from pontil.launcher.tools.chaos.fault_plan import FAULTS, OF_PROXIES, VARIANTS
from pontil.launcher.tools.chaos.prompts import PROMPTS

pytestmark = pytest.mark.long

WITHIN = 300.0
# A plan in which faults overlap, so that it is short.
SEED = "7345"
# The load sends the admin key, which the environment has.
ADMIN = {"PONTIL_ADMIN_KEY": "administrators-own-key-0123456789"}
SECOND = "second-callers-own-key-0123456789"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two proxies before a small model on one prefill and two decode workers, with the usage log on a small filesystem
    where one can be mounted, for callers with keys."""
    folder = tmp_path_factory.mktemp("chaos")
    with ExitStack() as stack:
        flags = [
            *disturbed.options(folder, layers=2),
            "--proxies",
            "2",
            "--prefill",
            "cpu:0",
            "--decode",
            "cpu:0,cpu:1",
        ]
        disk, keys = stack.enter_context(small_disk(folder)), keys_of(folder)
        keys.touch(0o600)
        keys.write_text(f"second={SECOND}\n")
        flags += ["--api-keys", str(keys)]
        flags += ["--usage-log", str((disk or folder) / "usage.db"), "--share-devices", "--allow-chaos"]
        # However slow the machine is, no small request is refused for the time that it would take.
        flags += ["--first-byte-timeout", "300", "--kv-transfer-timeout", "300"]
        yield stack.enter_context(launched(folder, *flags, variables=ADMIN))


def keys_of(folder: Path) -> Path:
    return folder / "api.keys"


def run(site: Served, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_program([str(APP), "chaos", "--pid", str(site.process.pid), *words], ADMIN, timeout=60 * WITHIN)


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["fault"]: row for row in report["pauses"]}


def test_a_launch_holds_under_every_fault(site: Served) -> None:
    """No stream is lost that can be continued, each is billed once, and small requests do not wait for a second caller
    that asks for much. That the launch itself holds under any faults is shown by tests/world, at more points."""
    load = ("--minutes", "10", "--streams", "12", "--greedy-key", str(keys_of(site.output.parent)))
    done = run(site, *load, "--seed", SEED, "--json")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if not check["held"]] == []
    assert (report["verdict"], done.returncode) == ("held", 0)
    rows, left_out = rows_of(report), set(report["left_out"])
    assert left_out <= ({"fill"} if "small-disk" not in str(site.usage_log) else set())
    of_workers = {variant for fault in FAULTS for variant in VARIANTS[fault]}
    of_proxies = {f"{variant}, proxy" for fault in FAULTS if fault in OF_PROXIES for variant in VARIANTS[fault]}
    assert set(rows) | left_out == of_workers | of_proxies | {"none"}
    # The faults do what they are for.
    assert rows["cut"]["failed_handoffs"] > 0 and (left_out or rows["fill"]["failed_writes"] > 0)
    assert any("continued after a break" in check["seen"] for check in report["checks"])
    (fair,) = [check["seen"] for check in report["checks"] if check["name"] == "fairness"]
    assert report["fairness"]["sent"] > 1 and ", 0 refused or lost, 0 late" in fair
    died = {name: row["restarts"] for name, row in site.topology().items() if row["restarts"]}
    deadly = ("kill", "stop (long)", "kill, proxy", "stop (long), proxy")
    assert sum(died.values()) == sum(rows[name]["times"] for name in deadly if name in rows)
    (usage,) = [check["seen"] for check in report["checks"] if check["name"] == "usage"]
    assert "replies have one row each, which agrees on every token" in usage
    assert f"seed {SEED}: {len(report['plan'])} faults" in done.stderr
    assert site.get("/admin/topology")["chaos"] is True


def test_one_wrong_answer_breaks_the_verdict(site: Served) -> None:
    """The load goes through a relay that changes why one answer ended, once the undisturbed ones are known: asking for
    those takes seconds."""
    changed: list[bytes] = []

    def spoil(data: bytes, before: int) -> bytes:
        undisturbed = relay.sent.count(b"POST /v1/") <= 2 * len(PROMPTS)
        if undisturbed or changed or b'"finish_reason":"length"' not in data:
            return data
        changed.append(data)
        return data.replace(b'"finish_reason":"length"', b'"finish_reason":"lenght"')

    relay = Relay(("127.0.0.1", site.port), spoil=spoil)
    try:
        done = run(
            site, "--url", f"127.0.0.1:{relay.address[1]}", "--faults", "cut", "--minutes", "0.01", "--seed", "1"
        )
    finally:
        relay.close()
    assert changed and done.returncode == 1, done.stdout + done.stderr
    broken = [line for line in done.stdout.splitlines() if line.startswith("BROKE")]
    assert len(broken) == 1 and "answers" in broken[0] and "1 are changed and 0 lost" in broken[0]
    assert "ended by lenght and not by length" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("broke: ")


def test_ctrl_c_undoes_everything(site: Served, tmp_path: Path) -> None:
    """A fault comes only after the undisturbed answers, which take seconds."""
    said = site.output.read_text().count(" slow for ")
    line = [str(APP), "chaos", "--pid", str(site.process.pid), "--faults", "slow", "--seed", "2"]
    with (tmp_path / "output").open("w+b") as output:
        process = fork_program(line, tmp_path, [output.fileno()] * 3, os.environ | ADMIN, computing=False)
        try:
            wait_for(lambda: site.output.read_text().count(" slow for ") > said, WITHIN, "a fault")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert "Traceback" not in (tmp_path / "output").read_text()
    family = psutil.Process(site.process.pid).children()
    wait_for(lambda: not any(status_of(one) == psutil.STATUS_STOPPED for one in family), 60, "everybody runs")
    assert site.complete("The capital of France is", max_tokens=5)["usage"]["completion_tokens"] == 5
