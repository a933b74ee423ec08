# SPDX-License-Identifier: Apache-2.0
"""A worker that differs from the others is refused when it joins, and the reason is shown everywhere (C8)."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_program import run_program
from served import APP, START_TIMEOUT, Served, launched, wait_for
from tiny_llama import write_tiny_llama

SMALL = ("--kv-cache-memory", "8MiB")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"ipc://{tmp_path_factory.mktemp('door')}/control"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: str, door: str) -> Iterator[Served]:
    """A proxy and one worker: others that join must be like it."""
    folder = tmp_path_factory.mktemp("served")
    with launched(folder, "--role", "mixed", "--model", model, "--control", door, "--dtype", "float32", *SMALL) as one:
        yield one


def joining(door: str, model: str, *more: str) -> list[str]:
    """Return the launch of a worker as a program and its words."""
    return [str(APP), "launch", "--role", "decode", "--join", door, "--model", model, *SMALL, *more]


def refusals(served: Served) -> dict[str, str]:
    """Return the reasons in the topology, by name."""
    rows = served.get("/admin/topology")["processes"]
    assert all(row["role"] == "decode" and row["pid"] for row in rows if row["state"] == "REFUSED")
    return {row["name"]: row["reason"] for row in rows if row["state"] == "REFUSED"}


def refused(served: Served, joined: "subprocess.CompletedProcess[str]") -> str:
    """Return the reason, once it was found everywhere it belongs."""
    output = joined.stdout + joined.stderr
    assert joined.returncode == 2 and "Traceback" not in output and "starting it again" not in output
    (sentence,) = refusals(served).values()
    assert f"Error: decode:0 could not start: the proxy refused this worker: {sentence}" in output
    assert f"refused a worker: {sentence}" in served.output.read_text()
    assert served.request("GET", "/ready").status == 200
    return sentence


# A start for each; every run refuses another model in the same way, and tests/runtime/worker/test_compatibility.py has
# the words for every difference.
@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--dtype", "float32", "--block-size", "32"),
            "block size 32 but mixed:0 has 16: start it with --block-size 16",
        ),
        (("--dtype", "bfloat16"), "dtype bfloat16 but mixed:0 has float32: start it with --dtype float32"),
    ],
)
def test_a_worker_unlike_the_others_is_refused(
    served: Served, door: str, model: str, flags: tuple[str, ...], says: str
) -> None:  # C8
    assert refused(served, run_program(joining(door, model, *flags), computing=True)) == f"decode:0 has {says}"


@pytest.mark.long
def test_another_model_of_the_same_name_is_refused(served: Served, door: str, tmp_path: Path) -> None:  # C8
    write_tiny_llama(tmp_path / "tiny", seed=1)
    sentence = refused(served, run_program(joining(door, str(tmp_path / "tiny"), "--dtype", "float32"), computing=True))
    found = re.fullmatch(
        r"decode:0 has model tiny \((\w+)\) but mixed:0 has tiny \((\w+)\): start it with the same --model", sentence
    )
    assert found and found[1] != found[2]


# Without --long: tests/runtime/proxy/fleet/test_registry.py forgets refusals, tests/system/test_one_host.py welcomes
# workers.
@pytest.mark.long
def test_one_that_fits_is_welcome_and_the_refusal_forgotten(served: Served, door: str, model: str) -> None:
    joined = subprocess.Popen([sys.executable, *joining(door, model, "--dtype", "float32")])
    try:
        wait_for(lambda: served.topology().get("decode:0", {}).get("state") == "READY", START_TIMEOUT, "the welcome")
        assert refusals(served) == {}
    finally:
        joined.terminate()
        joined.communicate(timeout=60)
    assert joined.returncode == 0
