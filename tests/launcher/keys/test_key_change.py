# SPDX-License-Identifier: Apache-2.0
"""Keys that change while a launch is running."""

from pathlib import Path

from pontil.launcher.child.child import Child
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.keys.key_file import change_keys, make_key_file, read_key_file
from pontil.launcher.plan.child_plan import ChildPlan


def children(secret: str) -> list[Child]:
    plan = ChildPlan("decode:0", "decode", "cpu", (0,), {"name": "decode:0"})
    return [Child(plan.with_keys(secret), ExecStarter(("true",), lambda threads: {})) for _ in range(2)]


def test_the_next_life_of_every_child_has_the_new_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_key_file(path)
    made = children(read_key_file(path))
    assert "the ones in use" in change_keys(path, made)
    make_key_file(path, force=True)
    said = change_keys(path, made)
    secret = read_key_file(path)
    assert "restart the proxy" in said and secret not in said
    assert [child.plan.config["keys"] for child in made] == [secret] * 2
    assert made[0].plan.config["name"] == "decode:0"


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_key_file(path)
    before = read_key_file(path)
    made = children(before)
    path.chmod(0o644)
    assert "stay what they were" in change_keys(path, made) and "chmod 600" in change_keys(path, made)
    path.unlink()
    assert "stay what they were" in change_keys(path, made)
    assert [child.plan.config["keys"] for child in made] == [before] * 2
