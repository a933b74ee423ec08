# SPDX-License-Identifier: Apache-2.0
"""Keys that sign receipts: made once, as OpenSSL reads them, and the owner's alone."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from tiny_llama import write_tiny_llama

from pontil.launcher.cli import cli
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.receipt_key import FILE, read_public_key, receipt_seed
from pontil.runtime.receipts.signing import ReceiptSigner


def seed(named: Path | None, cache: Path) -> str | None:
    return receipt_seed(None if named is None else str(named), cache, is_needed=True)


def test_one_is_made_once_and_read_again(tmp_path: Path) -> None:
    cache, before = tmp_path / "cache", os.umask(0)
    try:
        made = seed(None, cache)
    finally:
        os.umask(before)
    assert made is not None and seed(None, cache) == made != seed(None, tmp_path / "other")
    assert [path.name for path in cache.iterdir()] == [FILE], "no draft is left"
    assert stat.S_IMODE((cache / FILE).stat().st_mode) == 0o600
    key = serialization.load_pem_private_key((cache / FILE).read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey) and key.private_bytes_raw().hex() == made


def test_a_launch_without_a_proxy_makes_none(tmp_path: Path) -> None:
    assert receipt_seed(None, tmp_path, is_needed=False) is None and not list(tmp_path.iterdir())


def test_where_none_can_be_made_nothing_is_signed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert seed(None, tmp_path / "file") is None


@pytest.mark.parametrize("call", ["fsync", "link", "open"])
def test_a_disk_that_fills_leaves_no_part_of_a_key(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as changed:
        changed.setattr(os, call, full)
        assert seed(None, tmp_path) is None, "such a launch signs nothing"
    assert not list(tmp_path.iterdir())
    assert seed(None, tmp_path) is not None


BAD: list[tuple[bytes | None, int, str]] = [
    (None, 0, "cannot be read (No such file or directory)"),
    (b"secret of somebody", 0o600, "has no Ed25519 key in PEM"),
    (b"\x00\xff" * 99, 0o600, "has no Ed25519 key in PEM"),
    (b"-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n", 0o600, "has no Ed25519 key in PEM"),
    (b"", 0o644, "is open to other users"),
]


@pytest.mark.parametrize(("text", "mode", "says"), BAD)
def test_a_launch_with_a_bad_key_ends_in_one_sentence(tmp_path: Path, text: bytes | None, mode: int, says: str) -> None:
    write_tiny_llama(tmp_path / "tiny")
    path = tmp_path / "key"
    if text is not None:
        path.write_bytes(text)
        path.chmod(mode)
    words = ("launch", "--share-devices", "--role", "mixed", "--model", str(tmp_path / "tiny"), "--port", "0")
    error: Any = CliRunner().invoke(cli, [*words, "--receipt-key", str(path)], standalone_mode=False).exception
    assert error.exit_code == 2 and says in error.message and "\n" not in error.message, error
    assert str(path) in error.message and "secret" not in error.message


def pem_of(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def test_a_file_is_read_as_openssl_writes_it(tmp_path: Path) -> None:
    key, path = Ed25519PrivateKey.generate(), tmp_path / "key"
    path.write_bytes(pem_of(key))
    path.chmod(0o600)
    assert seed(path, tmp_path / "cache") == key.private_bytes_raw().hex() and not (tmp_path / "cache").exists()
    path.chmod(0o640)
    with pytest.raises(OptionError, match="open to other users"):
        seed(path, tmp_path)


@pytest.mark.parametrize("text", [b"", b"secret", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(OptionError, match="openssl genpkey") as refused:
        seed(path, tmp_path)
    assert "secret" not in refused.value.message


def test_a_public_key_is_read_in_each_form(tmp_path: Path) -> None:
    key = ReceiptSigner(b"\x05" * 32).public_key
    (tmp_path / "hex").write_text(f"{key.hex()}\n")
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "pem").write_bytes(Ed25519PublicKey.from_public_bytes(key).public_bytes(encoding, form))
    (tmp_path / "none").write_text("x")
    assert {read_public_key(given, "--key") for given in (key.hex(), f"{tmp_path}/hex", f"{tmp_path}/pem")} == {key}
    for given in ("zz", f"{tmp_path}/none"):
        with pytest.raises(OptionError, match="--key zz is no key" if given == "zz" else "has no public Ed25519 key"):
            read_public_key(given, "--key")
