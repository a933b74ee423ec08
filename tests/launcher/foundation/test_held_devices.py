# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.launcher.foundation.held_devices import FILE, HeldDevices, read_held

CORES = st.frozensets(st.integers(0, 99))
NAMES = st.frozensets(st.text(max_size=9))
HELD = st.builds(HeldDevices, CORES, NAMES, NAMES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cores", "gpus", "roles", "x"]), inner, max_size=4)
    ),
)


@settings(max_examples=examples(30, 200))
@given(HELD, HELD)
def test_what_launches_state_is_read_together(one: HeldDevices, other: HeldDevices) -> None:
    with TemporaryDirectory() as root:
        folders = [Path(root, name) for name in ("1", "2", "3")]
        for folder in folders:
            folder.mkdir()
        other.write(folders[0])
        for folder, held in zip(folders, (one, other), strict=False):
            held.write(folder)
        assert read_held(folders) == one | other, "the third has stated nothing"


@settings(max_examples=examples(60, 500))
@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_cannot_be_read_is_named_and_hides_nothing_else(found: bytes) -> None:
    with TemporaryDirectory() as root:
        whole, damaged = Path(root, "1"), Path(root, "2")
        whole.mkdir()
        damaged.mkdir()
        HeldDevices(frozenset({3}), roles=frozenset({"decode"})).write(whole)
        (damaged / FILE).write_bytes(found)
        held = read_held([damaged, whole])
        assert 3 in held.cores and "decode" in held.roles
        assert held.unread == {damaged / FILE} or (held.unread == set() and isinstance(json.loads(found), dict))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"cores": [1]}', '{"cores": 1, "gpus": [], "roles": []}'])
def test_a_damaged_statement_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_held([tmp_path]) == HeldDevices(unread=frozenset({tmp_path / FILE}))


def test_devices_are_said_in_words() -> None:
    assert str(HeldDevices()) == ""
    assert str(HeldDevices(frozenset({2, 0, 1}))) == "cores 0-2"
    assert str(HeldDevices(frozenset({4}), frozenset({"1", "0"}))) == "cores 4 and GPU 0 and GPU 1"
    both = HeldDevices(frozenset({1, 2}), frozenset({"0"}), frozenset({"decode"}))
    assert both.shared_with(HeldDevices(frozenset({2}), frozenset({"1"}))) == HeldDevices(frozenset({2}))
