# SPDX-License-Identifier: Apache-2.0
"""Weights that a process has packed are mapped by the next one: the same bits, and nothing that is not whole."""

import errno
import fcntl
import gc
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernels
import pytest
import torch
from architectures import hugging_model
from gguf.constants import GGMLQuantizationType
from mxfp4_directory import EVEN, write_mxfp4
from packed_loading import Loading, bits, change, packed_files_of
from quantized_directory import FORMS, LARGE, quantize, write_quantized
from tiny_gguf import write_tiny_gguf
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.kernels import passed_checks
from pontil.gpu_ops.kernels.weights import arena, shelf
from pontil.gpu_ops.kernels.weights.packed_file import read_index
from pontil.gpu_ops.kernels.weights.shelf import MappedShelf, PrivateShelf, WritingShelf, sums_of
from pontil.runtime.probe import packed_share
from pontil.runtime.probe.packed_share import FOLDER
from pontil.runtime.worker.start import packed_files, packed_weights

SECOND = {"checkpoint_format": "gptq_v2"}
PROMPT = torch.arange(3, 40)
Q8_0 = GGMLQuantizationType.Q8_0


@pytest.mark.parametrize(
    ("kind", "quantization"),
    [
        *(("llama", "none"), ("llama", "int8"), ("deepseek", "none"), ("deepseek", "int8"), ("gguf", "gguf")),
        *(("awq", "gguf"), ("awq", "none"), ("gptq", "gguf"), ("packed-zeros", "gguf"), ("fp8-rows", "none")),
        *(("mxfp4", "gguf"), ("mxfp4", "int8")),
    ],
)
def test_the_next_process_maps_the_same_bits_and_reads_nothing(
    tmp_path: Path, cache: Path, kind: str, quantization: str
) -> None:
    path = tmp_path / "model"
    if kind == "deepseek":
        write_tiny_deepseek(path, "bfloat16", by_kernels=True)
    elif kind == "mxfp4":
        write_mxfp4(hugging_model("gpt_oss", EVEN), path)
    elif kind in FORMS:
        write_quantized(hugging_model("llama", LARGE), path, *FORMS[kind])
    else:
        config = write_tiny_llama(path)
        path = write_tiny_gguf(tmp_path / "m.gguf", path, config, kind=Q8_0) if kind == "gguf" else path
    private, first = (Loading(path, place, quantization) for place in (None, cache))
    expected, own = private.model(), first.model()
    second = Loading(path, cache, quantization)
    mapped = second.model()
    kinds = [type(one.shelf) for one in (private, first, second)]
    assert kinds == [PrivateShelf, WritingShelf, MappedShelf]
    assert bits(expected) == bits(own) == bits(mapped)
    assert next(second.weights.source, None) is not None, "the checkpoint was read"
    assert torch.equal(expected.embed(PROMPT), mapped.embed(PROMPT))


def test_another_reading_of_the_same_bytes_has_another_file(tmp_path: Path, cache: Path) -> None:
    """The first version of GPTQ stores zeros less one, which its second does not."""
    path, (form, encode) = tmp_path / "model", FORMS["gptq"]
    write_tiny_llama(path)
    quantize(path, form, encode)
    first = Loading(path, cache, "gguf")
    first.model()
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": form | SECOND}))
    second = Loading(path, cache, "gguf")
    assert second.checkpoint.fingerprint != first.checkpoint.fingerprint
    assert isinstance(second.shelf, WritingShelf)
    assert bits(second.model()) == bits(Loading(path, None, "gguf").model())


def test_other_settings_have_another_file(model: Path, cache: Path) -> None:
    for settings in ({}, {"quantization": "int8"}, {"rank": 1}, {"rank": 1, "row_parallel": True}):
        assert isinstance(Loading(model, cache, **settings).shelf, WritingShelf)


def test_a_model_that_was_changed_is_packed_anew(model: Path, cache: Path) -> None:
    Loading(model, cache).model()
    assert isinstance(Loading(model, cache).shelf, MappedShelf)
    (file,) = model.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    changed = Loading(model, cache)
    assert isinstance(changed.shelf, WritingShelf)
    assert bits(changed.model()) == bits(Loading(model, None).model())


@pytest.mark.parametrize("place", [10, 1 << 20, -100, -1])
def test_a_damaged_file_is_packed_anew(model: Path, cache: Path, place: int) -> None:
    expected = bits(Loading(model, cache).model())
    (file,) = packed_files_of(cache)
    change(file, place)
    again = Loading(model, cache)
    assert isinstance(again.shelf, WritingShelf) and bits(again.model()) == expected
    assert isinstance(Loading(model, cache).shelf, MappedShelf)


def test_a_damaged_file_is_summed_and_warned_of_once(
    model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Loading(model, cache).model()
    (file,) = packed_files_of(cache)
    change(file, 10)
    Loading(model, cache).model()
    assert len([line for line in caplog.messages if "packed anew" in line]) == 1


def counted_sums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the bytes of all memory that is summed from now on."""
    sums: list[int] = []

    def counted(memory: Any) -> list[int]:
        sums.append(memory.size)
        return sums_of(memory)

    monkeypatch.setattr(shelf, "sums_of", counted)
    return sums


def test_a_file_is_summed_once_a_boot_while_nobody_writes_to_it(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = counted_sums(monkeypatch)
    expected = bits(Loading(model, cache).model())
    sums.clear()
    assert [bits(Loading(model, cache).model()) for _ in range(3)] == [expected] * 3 and len(sums) == 1
    (file,) = packed_files_of(cache)
    change(file, 10)
    again = Loading(model, cache)
    assert isinstance(again.shelf, WritingShelf) and len(sums) == 2
    again.model()
    Loading(model, cache).model()
    boot = cache / "boot"
    boot.write_text("another")
    monkeypatch.setattr(passed_checks, "BOOT", boot)
    sums.clear()
    assert bits(Loading(model, cache).model()) == expected and len(sums) == 1


def test_a_file_without_a_lease_is_summed_each_time(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may write to it at any time."""
    sums = counted_sums(monkeypatch)
    monkeypatch.setattr(shelf, "lease", lambda mapped: None)
    Loading(model, cache).model()
    sums.clear()
    for _ in range(2):
        Loading(model, cache).model()
    assert len(sums) == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_file_that_was_cut_off_is_packed_anew(model: Path, cache: Path, share: float) -> None:
    Loading(model, cache).model()
    (file,) = packed_files_of(cache)
    file.chmod(0o600)
    os.truncate(file, int(share * file.stat().st_size))
    again = Loading(model, cache)
    assert isinstance(again.shelf, WritingShelf)
    again.model()
    assert isinstance(Loading(model, cache).shelf, MappedShelf)


def test_a_process_that_dies_while_it_packs_leaves_nothing_that_is_used(model: Path, cache: Path) -> None:
    """The kernel lets go of its lock."""
    pid = os.fork()
    if not pid:
        dying = Loading(model, cache)
        dying.weights.take(
            "model.embed_tokens.weight", dying.checkpoint.config.vocab_size, dying.checkpoint.config.hidden_size
        )
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not packed_files_of(cache) and list((cache / FOLDER).glob("*.partial"))
    again = Loading(model, cache)
    assert isinstance(again.shelf, WritingShelf)
    again.model()
    assert isinstance(Loading(model, cache).shelf, MappedShelf)
    assert not list((cache / FOLDER).glob("*.partial"))


def test_who_comes_while_another_packs_waits_for_it(model: Path, cache: Path) -> None:
    first, second = Loading(model, cache), list[Loading]()
    waiting = threading.Thread(target=lambda: second.append(Loading(model, cache)))
    waiting.start()
    first.model()
    waiting.join(timeout=60)
    assert isinstance(first.shelf, WritingShelf) and isinstance(second[0].shelf, MappedShelf)


def test_who_waits_for_long_packs_for_itself(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files, "LOCK_TIMEOUT", 0.1)
    first = Loading(model, cache)
    assert isinstance(first.shelf, WritingShelf) and isinstance(Loading(model, cache).shelf, PrivateShelf)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Room for so many regions."""
    room, real = [0], os.posix_fallocate

    def allocate(file: int, start: int, size: int) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        real(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    yield room


@pytest.mark.parametrize("regions", [0, 1])
def test_a_full_disk_has_each_process_keep_its_own(
    model: Path, cache: Path, full_disk: list[int], regions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "CHUNK", 4096)
    full_disk[0] = regions
    loading = Loading(model, cache)
    assert bits(loading.model()) == bits(Loading(model, None).model())
    assert not packed_files_of(cache) and not list((cache / FOLDER).glob("*.partial"))


def test_where_no_file_can_be_written_weights_are_private(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert isinstance(Loading(model, tmp_path / "cache").shelf, PrivateShelf)


def test_nobody_writes_what_others_read(model: Path, cache: Path) -> None:
    first = Loading(model, cache)
    models = [first.model(), Loading(model, cache).model()]
    for built in models:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            assert isinstance(built.embedding, torch.Tensor)
            built.embedding[0, 0] = 1
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV


def test_the_index_says_what_the_file_is_of(model: Path, cache: Path) -> None:
    Loading(model, cache).model()
    index = read_index(packed_files_of(cache)[0])
    assert index.about["quantization"] == "none" and index.about["kernels"] == kernels.opened().name
    assert index.about["files"] == [str(path.resolve()) for path in model.glob("*.safetensors")]
    with (cache / FOLDER / packed_files_of(cache)[0].with_suffix(".lock").name).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def aged(path: Path, days: float) -> Path:
    now = time.time()
    os.utime(path, (now, now - days * packed_files.DAY))
    return path


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path, str], Path]:
    """Pack a model as another version of this code does, and return the new file."""

    def pack(model: Path, cache: Path, quantization: str) -> Path:
        before = packed_files_of(cache)
        with monkeypatch.context() as patch:
            patch.setattr(packed_weights, "source_digest", lambda: "another")
            loading = Loading(model, cache, quantization)
            loading.model()
        del loading
        gc.collect()  # which ends this process's mapping
        return next(path for path in packed_files_of(cache) if path not in before)

    return pack


def test_files_that_nobody_uses_are_removed(
    model: Path, cache: Path, other_code: Callable[[Path, Path, str], Path]
) -> None:
    """A day after other code used its own, and 30 days after anything was used."""
    Loading(model, cache, "int8").model()
    gc.collect()
    (int8,) = packed_files_of(cache)
    older, recent = (other_code(model, cache, quantization) for quantization in ("none", "int8"))
    long_unused = cache / FOLDER / "0-0-0-0-0.digest"
    long_unused.write_text("0")
    for path, days in ((older, 2), (recent, 0.5), (int8, 2), (long_unused, 31)):
        aged(path, days)
    Loading(model, cache).model()
    assert not older.exists() and not long_unused.exists() and int8.exists() and recent.exists()
    assert len(packed_files_of(cache)) == 3


def test_what_a_process_maps_is_kept_however_long_ago_it_was_used(model: Path, cache: Path) -> None:
    """A worker of it that ends packs nothing anew."""
    serving = Loading(model, cache, "int8").model()
    (mapped,) = packed_files_of(cache)
    aged(mapped, 40)
    Loading(model, cache).model()
    assert mapped.exists()
    del serving
    gc.collect()
    Loading(model, cache, rank=1).model()
    assert not mapped.exists()


def test_a_full_disk_gets_room_from_other_code_first_and_then_from_what_was_used_longest_ago(
    model: Path, cache: Path, other_code: Callable[[Path, Path, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        Loading(model, cache, "int8", rank).model()
    gc.collect()
    older, newer = sorted(packed_files_of(cache), key=lambda path: str(read_index(path).about["rank"]))
    other = other_code(model, cache, "none")
    aged(older, 2), aged(newer, 1)
    size, room = older.stat().st_size, packed_share.SPARED_BYTES
    need = packed_share.PACKED_SHARE * sum(path.stat().st_size for path in model.glob("*.safetensors"))
    start = sum(path.stat().st_size for path in packed_files_of(cache))

    def free(path: Path) -> SimpleNamespace:
        left = sum(path.stat().st_size for path in packed_files_of(cache))
        return SimpleNamespace(free=room + need - lacking[0] + start - left)

    monkeypatch.setattr(shutil, "disk_usage", free)
    lacking = [start + 1]
    assert isinstance(Loading(model, cache).shelf, PrivateShelf) and len(packed_files_of(cache)) == 3
    lacking = [other.stat().st_size + size]
    assert isinstance(Loading(model, cache).shelf, WritingShelf)
    assert not other.exists() and not older.exists() and newer.exists()
