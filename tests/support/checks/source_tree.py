# SPDX-License-Identifier: Apache-2.0
"""Source files, each read and parsed once for all checks."""

import ast
import gc
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXTS = {".py", ".md", ".h", ".cpp", ".sh", ".toml", ".cfg", ".yaml", ".service"}


@cache
def texts() -> tuple[Path, ...]:
    """Return every text file of the repository written by people: code, tests, scripts and pages, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = (ROOT / line for line in listed.stdout.splitlines())
    return tuple(sorted(path for path in paths if path.suffix in TEXTS and path.is_file()))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the file's syntax tree, which is shared and must not be changed. It is kept to the end: the collector of
    garbage, which would look through all of it over and over, takes three times as long as the parser."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text_of(path))
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def each(paths: Iterable[Path], check: Callable[[Path], None]) -> None:
    """Run the check on every file. Raises AssertionError that lists each failing file with its reason."""
    wrong = []
    for path in paths:
        try:
            check(path)
        except AssertionError as error:
            wrong.append(f"{path.relative_to(ROOT)}: {error}")
    assert not wrong, "\n".join(wrong)
