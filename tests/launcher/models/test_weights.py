# SPDX-License-Identifier: Apache-2.0
"""The command `pontil weights`, run as a real process over files that a worker's own code wrote."""

import gc
import json
import mmap
import os
from pathlib import Path

import pytest
import torch
from command_line import APP
from forked_program import run_program

from pontil.gpu_ops.kernels.weights.places import PARTIAL, NamedFile
from pontil.gpu_ops.kernels.weights.shelf import WritingShelf
from pontil.runtime.probe.packed_share import FOLDER
from pontil.runtime.worker.start.packed_files import LOCK, SUFFIX, alone, files_of, source_digest

FIRST, SECOND = "a" * 32, "b" * 32


def write(
    folder: Path, name: str, file: str, quantization: str = "gguf", part: str = "", sources: str | None = None
) -> Path:
    """Write packed weights of one tensor, as of a model's file, by code of this digest or by this version's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{SUFFIX}"
    about: dict[str, object] = {"files": [file], "kernels": "avx2", "quantization": quantization, "rank": 0, "ranks": 1}
    about |= {"part": part, "sources": sources or source_digest()}
    shelf = WritingShelf(NamedFile(path), about, alone(path.with_suffix(LOCK), print))
    shelf.tensor("numbers", lambda: torch.arange(1000, dtype=torch.int64))
    shelf.finish()
    del shelf
    gc.collect(1)  # which ends this process's mapping: all of it is young
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with the weights of two models."""
    write(tmp_path / FOLDER, FIRST, "/models/first.gguf")
    write(tmp_path / FOLDER, SECOND, "/models/second/model-1.safetensors", "int8")
    return tmp_path / FOLDER


def damage(path: Path, place: int = 2000) -> None:
    """Change a byte under the same name, as an operator's hand would."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def command(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Verifying and removing read the files with torch, which a process that computes has imported."""
    done = run_program([str(APP), "weights", *words], {"PONTIL_CACHE": str(folder.parent)}, computing=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_all_files_are_listed_with_what_they_are_of(folder: Path) -> None:
    code, (heading, *lines) = command(folder)
    assert code == 0 and heading.split()[:3] == ["name", "model", "quantization"]
    rows = {line.split()[1]: line.split() for line in lines}
    assert rows["first.gguf"][0] == FIRST[:12] and rows["second"][2:4] == ["int8", "avx2"]
    assert all("complete" in row and row[-1] == "-" for row in rows.values())


def test_parts_of_a_model_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / FOLDER, FIRST, "/models/omni/model.safetensors", "none", "code predictor")
    assert "omni   none, code predictor" in command(tmp_path / FOLDER)[1][1]


def test_without_files_the_list_says_so(tmp_path: Path) -> None:
    assert command(tmp_path / FOLDER) == (0, ["no packed weights"])
    assert command(tmp_path / FOLDER, "verify") == (0, [])


def test_the_processes_that_map_a_file_are_named(folder: Path) -> None:
    path = folder / f"{FIRST}{SUFFIX}"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ):
        rows = {row["name"]: row for row in json.loads("\n".join(command(folder, "--json")[1]))}
        assert os.getpid() in rows[FIRST]["mapped_by"] and os.getpid() not in rows[SECOND]["mapped_by"]
        code, (line,) = command(folder, "remove", "first.gguf")
        assert code == 0 and "removed; until they end it is kept by the processes" in line and str(os.getpid()) in line
    assert [file.name for file in files_of(folder.parent)] == [SECOND]


def test_a_damaged_file_is_named_with_exit_code_1(folder: Path) -> None:
    code, lines = command(folder, "verify")
    assert code == 0 and all(line.endswith(": complete") for line in lines) and len(lines) == 2
    damage(folder / f"{SECOND}{SUFFIX}")
    code, lines = command(folder, "verify")
    assert code == 1 and len(lines) == 2
    assert sum("is damaged between the bytes 0 and 2097152" in line for line in lines) == 1
    assert command(folder, "verify", "first.gguf")[0] == 0
    os.truncate(folder / f"{SECOND}{SUFFIX}", 5000)
    code, (line,) = command(folder, "verify", SECOND[:8])
    assert code == 1 and line.endswith("is cut off or of another version")
    assert {file.state for file in files_of(folder.parent)} == {"complete", "damaged"}


def test_what_is_being_written_is_left_and_what_was_left_unfinished_is_removed(folder: Path) -> None:
    partial = folder / f"{'c' * 32}{PARTIAL}"
    partial.write_bytes(bytes(100))
    lock = alone(partial.with_suffix(LOCK), print)
    assert [file.state for file in files_of(folder.parent)][-1] == "being written"
    code, (line,) = command(folder, "remove", "cccccc")
    assert code == 1 and line.endswith("left, as a process is packing these weights") and partial.exists()
    lock.close()
    assert [file.state for file in files_of(folder.parent)][-1] == "unfinished"
    assert command(folder, "verify", "cccccc")[0] == 1
    assert command(folder, "remove", "cccccc")[0] == 0 and not partial.exists()


def test_all_are_removed_only_if_that_is_said(folder: Path) -> None:
    for words in (["remove"], ["remove", "--all", "first.gguf"]):
        code, (line,) = command(folder, *words)
        assert code == 2 and "say which packed weights to remove" in line
    for name in ("third.gguf", "aaa", ""):
        code, (line,) = command(folder, "remove", name)
        assert code == 2 and "no packed weights are named" in line
    assert len(files_of(folder.parent)) == 2
    assert command(folder, "remove", "--all")[0] == 0
    assert not list(folder.iterdir())


def test_what_other_code_packed_is_listed_as_such_and_pruned_unless_a_process_maps_it(folder: Path) -> None:
    mapped, other = (write(folder, name * 32, "/models/first.gguf", sources="0") for name in "de")
    rows = {row["name"]: row["state"] for row in json.loads("\n".join(command(folder, "--json")[1]))}
    assert rows == {FIRST: "complete", SECOND: "complete", "d" * 32: "of other code", "e" * 32: "of other code"}
    (folder / f"{'f' * 32}{PARTIAL}").write_bytes(bytes(100))
    writing = folder / f"{'c' * 32}{PARTIAL}"
    writing.write_bytes(bytes(100))
    with (
        alone(writing.with_suffix(LOCK), print),
        mapped.open("rb") as file,
        mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ),
    ):
        code, lines = command(folder, "prune")
    assert code == 0 and len(lines) == 2
    assert any(line.startswith("eeeeee") and line.endswith("of other code: removed") for line in lines)
    assert mapped.exists() and writing.exists() and not other.exists()
    assert len([file for file in files_of(folder.parent) if file.state == "complete"]) == 2


def test_who_waits_for_a_lock_that_was_removed_takes_the_one_that_is_there(folder: Path) -> None:
    """Else two processes would write one file."""
    path = folder / f"{FIRST}{LOCK}"
    old = alone(path, print)
    path.unlink()
    new = alone(path, print)
    assert os.fstat(new.fileno()).st_ino == path.stat().st_ino != os.fstat(old.fileno()).st_ino
