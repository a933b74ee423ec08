# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from pontil.gpu_ops.kernels import kernel_set, passed_checks
from pontil.gpu_ops.kernels.compile.instruction_sets import InstructionSet
from pontil.gpu_ops.kernels.kernel_set import open_kernels
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.passed_checks import MOST_KEPT, PassedChecks, state_of_file

QUICK = InstructionSet("generic", frozenset(), ("-O0",))


def test_what_passed_is_known_in_the_same_state_and_boot_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = PassedChecks(tmp_path / "checked")
    assert not passed.has("a", "1")
    passed.add("a", "1")
    passed.add("b", "2")
    assert PassedChecks(tmp_path / "checked").has("a", "1") and passed.has("b", "2") and not passed.has("a", "2")
    boot = tmp_path / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(passed_checks, "BOOT", boot)
    assert not passed.has("a", "1")
    passed.add("b", "2")
    assert passed.read() == {"b": "2"}, "what passed before is forgotten"
    boot.unlink()
    passed.add("c", "3")
    assert not passed.has("b", "2") and not passed.has("c", "3"), "nobody says when the system booted"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"boot": 3}', '{"passed": {"a": "1"}}', "\xff"])
def test_a_file_that_is_none_of_ours_says_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checked"
    path.write_bytes(text.encode("latin-1"))
    passed = PassedChecks(path)
    assert not passed.has("a", "1")
    passed.add("a", "1")
    assert passed.has("a", "1")


def test_no_more_are_kept_than_a_few_and_none_where_nothing_can_be_written(tmp_path: Path) -> None:
    passed = PassedChecks(tmp_path / "checked")
    for number in range(MOST_KEPT + 3):
        passed.add(str(number), "1")
    assert len(passed.read()) == MOST_KEPT and not passed.has("2", "1") and passed.has("3", "1")
    for nowhere in (PassedChecks(None), PassedChecks(tmp_path / "none" / "checked")):
        nowhere.add("a", "1")
        assert not nowhere.has("a", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["checked"]


def test_a_write_changes_the_state_of_a_file_whatever_its_times_say(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with path.open("rb") as file:
        before, times = state_of_file(file), file.fileno()
        found = os.fstat(times)
        path.write_bytes(b"two")
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert state_of_file(file) != before


def test_kernels_are_checked_once_a_boot_unless_something_about_them_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def fault(library: KernelLibrary) -> str | None:
        checked.append(library.name)
        return None

    def opens(threads: int = 1) -> int:
        before = len(checked)
        library = open_kernels("auto", threads, tmp_path)
        assert library is not None
        library.close()
        return len(checked) - before

    monkeypatch.setattr(kernel_set, "usable_sets", lambda: [QUICK])
    monkeypatch.setattr(kernel_set, "fault", fault)
    assert (opens(), opens(), opens(2), opens(2), opens()) == (1, 0, 1, 0, 0)
    (file,) = (tmp_path / "kernels").glob("*.so")
    os.utime(file)
    assert (opens(), opens()) == (1, 0), "another file"
    cpuinfo = tmp_path / "cpuinfo"
    for number, (text, checks) in enumerate(
        (("flags\t: fma", 1), ("flags\t: fma\ncpu MHz\t: 7", 0), ("flags\t: x", 1))
    ):
        cpuinfo.write_text(f"{text}\n\nprocessor\t: {number}\n")
        monkeypatch.setattr(kernel_set, "CPUINFO", cpuinfo)
        assert opens() == checks, text
    monkeypatch.setattr(kernel_set, "fault", lambda library: "off")
    os.utime(file)
    for _ in range(2):
        assert open_kernels("auto", 1, tmp_path) is None, "a fault is never remembered as none"
