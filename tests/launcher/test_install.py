# SPDX-License-Identifier: Apache-2.0
"""The installed pontil, run from a folder that is not the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Modules that are imported only where their extra is wanted are left out.
IMPORT_EVERYTHING = """
import importlib, pathlib, sys, pontil.launcher
top = pathlib.Path(pontil.launcher.__file__).parent.parent
names = sorted(".".join(path.relative_to(top.parent).with_suffix("").parts) for path in top.rglob("*.py"))
extra = ("pontil.runtime.tracing.otlp_export", "pontil.runtime.tracing.span_tree", "pontil.gpu_ops.triton.")
for name in names:
    if not name.endswith("__main__") and not name.startswith(extra):
        importlib.import_module(name.removesuffix(".__init__"))
print(len(names))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    return next(out.glob("*.whl"))


def test_every_module_is_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    packed = {str(path.relative_to(tmp_path / "pontil")) for path in (tmp_path / "pontil").rglob("*.py")}
    rooms = ("launcher", "runtime", "gpu_ops", "http")
    assert packed == {str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py")}
    sources = ROOT / "gpu_ops" / "csrc"
    packed_sources = {path.name for path in (tmp_path / "pontil" / "gpu_ops" / "csrc").iterdir()}
    assert packed_sources == {path.name for path in sources.iterdir()} and "kernels.cpp" in packed_sources
    page = {path.name for path in (tmp_path / "pontil" / "http" / "page").iterdir() if path.suffix != ".py"}
    sources_of_page = {path.name for path in (ROOT / "http" / "page").iterdir() if path.is_file()}
    assert page == {name for name in sources_of_page if not name.endswith(".py")} and "index.html" in page


def test_the_launcher_starts_its_children_from_an_install(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    command = [sys.executable, "-m", "pontil.launcher", "launch", "--port", "0", "--role", "mixed", "--model", "none"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    # The sentence comes from the first child, which looks for the model.
    assert done.returncode == 1 and done.stderr.startswith("Error: ") and "'none'" in done.stderr


@pytest.mark.long
def test_its_dependencies_are_declared(wheel: Path, tmp_path: Path) -> None:  # D18
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    done = subprocess.run([python, "-c", IMPORT_EVERYTHING], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([python.with_name("pontil"), "version"], cwd=tmp_path).returncode == 0
