# SPDX-License-Identifier: Apache-2.0
"""Key files: readable only by their owner, and refused if they are invalid."""

import os
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from synced_names import note_syncs

from pontil.launcher.cli import cli
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.keys.key_file import FORMAT, make_key_file, read_key_file, secret_in

SECRET = "ab" * 32


def test_a_file_is_its_owners_alone_and_has_a_secret_of_its_own(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name in ("one", "two"):
            make_key_file(tmp_path / name)
    finally:
        os.umask(before)
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in ("one", "two"))
    one, two = (read_key_file(tmp_path / name) for name in ("one", "two"))
    assert one != two and re.fullmatch("[0-9a-f]{64}", one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"], "no draft is left"


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    make_key_file(path)
    before = read_key_file(path)
    with pytest.raises(LaunchError, match="--force"):
        make_key_file(path)
    assert read_key_file(path) == before
    make_key_file(path, force=True)
    assert read_key_file(path) != before and [one.name for one in tmp_path.iterdir()] == ["keys"]


@pytest.mark.parametrize("force", [False, True])
def test_a_power_cut_takes_neither_a_key_file_nor_its_name(
    tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = note_syncs(monkeypatch)
    make_key_file(tmp_path / "keys", force=force)
    draft, folder = synced
    assert draft.name.startswith(".keys.") and folder == tmp_path


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="is there already"):
        make_key_file(tmp_path / "keys")
    assert not (tmp_path / "elsewhere").exists()


def test_where_nothing_can_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot be written: No such file"):
        make_key_file(tmp_path / "no" / "keys")


@pytest.mark.parametrize(
    ("mode", "good"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False), (0o602, False)]
)
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int, good: bool) -> None:
    path = tmp_path / "keys"
    make_key_file(path)
    path.chmod(mode)
    if good:
        read_key_file(path)
    else:
        with pytest.raises(OptionError, match="open to other users.*chmod 600"):
            read_key_file(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, said in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "no regular file"),
    ):
        with pytest.raises(OptionError, match=said):
            read_key_file(path)


@pytest.mark.parametrize(
    "text",
    [
        "", "# only a comment", SECRET, f"{FORMAT} {SECRET[:-2]}", f"{FORMAT} {SECRET}0", f"{FORMAT} {'AB' * 32}",
        f"pontil-keys-2 {SECRET}", f"{FORMAT} {SECRET}\n{FORMAT} {SECRET}", f"{FORMAT}  {SECRET}",
        f"{FORMAT} {64 * chr(0x663)}",
    ],
)  # fmt: skip
def test_what_is_no_key_file_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(OptionError, match="is not a key file") as refused:
        secret_in(Path("keys"), text.encode())
    assert SECRET[:16] not in refused.value.message


@settings(max_examples=examples(40, 200))
@given(st.binary(max_size=200))
def test_no_bytes_make_a_secret_by_accident(text: bytes) -> None:
    with pytest.raises(OptionError):
        secret_in(Path("keys"), text)


def test_comments_and_empty_lines_are_no_harm() -> None:
    assert secret_in(Path("keys"), f"# ours\n\n  {FORMAT} {SECRET}  \r\n\n".encode()) == SECRET


def test_the_command_says_where_it_is_and_nothing_else(tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(cli, ["keys", "new", "--out", str(tmp_path / "k")], standalone_mode=False)
    assert done.exit_code == 0 and done.output == f"{tmp_path / 'k'}\n"
    again = runner.invoke(cli, ["keys", "new", "--out", str(tmp_path / "k")], standalone_mode=False)
    assert isinstance(again.exception, LaunchError)
