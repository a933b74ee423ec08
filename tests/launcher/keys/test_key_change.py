# SPDX-License-Identifier: Apache-2.0
"""Keys that change while a launch is running."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.foundation.errors import RefusedError
from pontil.launcher.keys.key_file import change_keys, follow, make_key_file, read_key_file
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.supervisor.recovery import Recovery
from pontil.launcher.supervisor.restart_policy import RestartPolicy


def children(secret: str, *roles: str) -> list[Child]:
    plans = [ChildPlan(f"{role}:0", role, "cpu", (0,), {"name": f"{role}:0"}) for role in roles or ("decode",) * 2]
    return [Child(plan.with_keys(secret), ExecStarter(("true",), lambda threads: {})) for plan in plans]


def keys_of(made: list[Child]) -> list[str]:
    return [child.plan.config["keys"] for child in made]


def test_the_next_life_of_every_child_has_the_new_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_key_file(path)
    made = children(read_key_file(path))
    assert "the ones in use" in change_keys(path, made)
    make_key_file(path, force=True)
    said = change_keys(path, made)
    secret = read_key_file(path)
    assert "restart the proxy" in said and secret not in said
    assert keys_of(made) == [secret] * 2
    assert made[0].plan.config["name"] == "decode:0"


def test_workers_beside_a_proxy_have_the_keys_that_it_starts_with(tmp_path: Path) -> None:
    """One that dies before the proxy has restarted comes back with keys that the proxy accepts."""
    path = tmp_path / "keys"
    make_key_file(path)
    before = read_key_file(path)
    made = children(before, "proxy", "prefill", "decode")
    make_key_file(path, force=True)
    after = read_key_file(path)
    for _ in range(2):
        assert "restart the proxy" in change_keys(path, made)
        assert keys_of(made) == [after, before, before]
    follow(made[0], made)
    assert keys_of(made) == [after] * 3
    assert "the ones in use" in change_keys(path, made)


def test_a_worker_that_joins_waits_for_the_proxy_to_have_its_new_keys(tmp_path: Path) -> None:
    """It is given up at once where its keys are those with which it was ready, or were always wrong."""
    path = tmp_path / "keys"
    make_key_file(path)
    renewed, same, new = children(read_key_file(path), *["decode"] * 3)
    for child in (renewed, same):
        child.proven = child.plan
    make_key_file(path, force=True)
    change_keys(path, [renewed])
    refusal = ExitCause(0.0, RefusedError.exit_code, failure="the proxy does not accept this worker's keys")
    lines = list[str]()
    console: Any = SimpleNamespace(line=lines.append, child_line=lambda *said: None)
    recovery = Recovery(RestartPolicy(), console, SimpleNamespace())  # type: ignore[arg-type]
    for child in (renewed, same, new):
        child.state = ChildState.EXITED
        for _ in range(RestartPolicy().attempts + 2):
            child.exits.append(refusal)
        recovery.answer(child, [renewed, same, new], True, 1.0)
    assert [child.state for child in (renewed, same, new)] == [ChildState.BACKOFF, *[ChildState.GIVEN_UP] * 2]
    assert renewed.due == 1.0 + RestartPolicy().max_delay and "starting it again in 10.0 s" in lines[0]


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_key_file(path)
    before = read_key_file(path)
    made = children(before)
    path.chmod(0o644)
    assert "stay what they were" in change_keys(path, made) and "chmod 600" in change_keys(path, made)
    path.unlink()
    assert "stay what they were" in change_keys(path, made)
    assert keys_of(made) == [before] * 2
