# SPDX-License-Identifier: Apache-2.0
"""The figures of scripts/house.py, of a checkout that is small enough to count by hand."""

from pathlib import Path

import pytest
from house import (
    circles,
    classes_of,
    long_signatures,
    main,
    modules_of,
    repeated_defaults,
    report,
    says_little,
    with_inherited,
)

FILES = {
    "runtime/__init__.py": "",
    "runtime/stages/__init__.py": "",
    "runtime/stages/walk.py": "def walk() -> None:\n    pass\n",
    "runtime/pool.py": '''"""Blocks.

    Two more lines.
    """

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pontil.runtime.block import Block


class Pool:
    blocks: "list[Block]"

    def __init__(self, size: int) -> None:
        self.size, self.free = size, size  # fmt: skip

    def take(self, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int) -> int:
        told = self.free
        return told
''',
    "runtime/block.py": """class Block:
    def pool(self) -> object:
        from pontil.runtime.pool import Pool

        return Pool(1)
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_figures_are_those_of_the_files(checkout: Path) -> None:
    lines = dict(line.rsplit(maxsplit=1) for line in report(checkout, 10) if line.count(" ") and line[-1].isdigit())
    text = "\n".join(report(checkout, 10))
    assert "product: 27 lines in 5 files, 16 of code\nwithout stages and tools: 25 lines in 3 files, 14 of code" in text
    assert "functions 4, mean length 2.8, at most 20 lines 100.0%\n" in text
    assert lines["fmt: skip"] == lines["signatures with 8 parameters or more, without kernels,"] == "1"
    assert "most fields: Pool (runtime/pool.py) 3, Block (runtime/block.py) 0\n" in text
    assert "most methods: Pool (runtime/pool.py) 2, Block (runtime/block.py) 1\n" in text
    assert "fullest rooms: runtime 2, runtime/stages 1\n" in text
    assert "with one importer 2\ncircles of files 1, the largest of 2\n  runtime.block runtime.pool\n" in text
    assert "bindings 11, of which bare participles and pronouns 1 (9.1%): told 1" in text


def test_fields_of_parents_count_too_and_kernels_may_have_many_parameters(checkout: Path) -> None:
    many = ", ".join("abcdefgh")
    (checkout / "runtime/tank.py").write_text(
        f"""import triton
from pontil.runtime.pool import Pool

class Tank(Pool):
    depth: int = 3

    def measure(self) -> None:
        def inner({many}): pass
        self.size, self.width = 1, 2

class Basin(Tank):
    depth: int = option(SIZES, 3, "deep")

@triton.jit(do_not_specialize=["a"])
def kernel({many}): pass
"""
    )
    modules = modules_of(checkout)
    assert with_inherited(classes_of(modules)) == {"Block": 0, "Pool": 3, "Tank": 5, "Basin": 5}
    assert long_signatures(modules) == [(8, "runtime/tank.py Tank.measure.inner"), (8, "runtime/pool.py Pool.take")]
    assert repeated_defaults(modules) == {"depth = 3": ["runtime/tank.py Tank", "runtime/tank.py Basin"]}


def test_circles_are_found_whole_and_apart() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]] and circles({"a": {"b"}, "b": set()}) == []


def test_names_that_leave_out_their_noun() -> None:
    names = ("told", "counted", "one", "seed", "embed", "counted_blocks", "block")
    assert [name for name in names if says_little(name)] == ["told", "counted", "one"]


def test_a_checkout_is_named(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["house.py", str(checkout), "--rows", "1"])
    main()
    assert "fullest rooms: runtime 2\n" in capsys.readouterr().out
