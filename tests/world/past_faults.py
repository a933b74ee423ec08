# SPDX-License-Identifier: Apache-2.0
"""Faults of the product's past as patches against today's code, each of which runs in a copy of the checkout."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAST = ROOT / "tests/world/past"
# Parts of the checkout that a copy needs.
COPIED = ("runtime", "http", "launcher", "gpu_ops", "scripts", "tests/support", "tests/world")
VIOLATION = re.compile(r"seed (\d+) step \d+: (\w+): ")
# Seconds that a run in a copy may take, for its imports and for each of its seeds: one that shows a fault is run again
# and again, until its shortest prefix is known.
IMPORTS_WITHIN, SEED_WITHIN = 120, 600


class UnusablePatchError(Exception):
    """A patch that is not there, or that cannot be applied to today's code."""


def names() -> list[str]:
    return sorted(path.stem for path in PAST.glob("*.patch"))


def patched(name: str) -> dict[str, str]:
    """Return the text of each file that a patch changes, as it is then. A hunk is found by its lines, not their number:
    they are there exactly once."""
    path = PAST / f"{name}.patch"
    if not path.is_file():
        raise UnusablePatchError(f"there is no past fault {name}: choose all or one of {', '.join(names())}")
    texts: dict[str, str] = {}
    for file, old, new in hunks(path.read_text()):
        if file not in texts:
            texts[file] = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        if (count := texts[file].count(old)) != 1:
            raise UnusablePatchError(
                f"{path.relative_to(ROOT)} applies no more, since the lines of a hunk are {count} times in {file}: "
                "reintroduce its fault where it would be now"
            )
        texts[file] = texts[file].replace(old, new)
    return texts


def hunks(patch: str) -> Iterator[tuple[str, str, str]]:
    """Yield the file of each hunk, its lines as they are, and as they become."""
    for part in re.split(r"^--- .*\n\+\+\+ b/", patch, flags=re.MULTILINE)[1:]:
        file, _, changes = part.partition("\n")
        for change in re.split(r"^@@ .*\n", changes, flags=re.MULTILINE)[1:]:
            lines = [line for line in change.splitlines(keepends=True) if line[0] in " -+"]
            old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
            yield file, old, new


@contextlib.contextmanager
def copied(name: str, folder: Path) -> Iterator[Path]:
    """Make a copy of the checkout with a past fault, and remove it at the end."""
    texts, copy = patched(name), folder / name
    for part in COPIED:
        # Others may compile modules meanwhile: such a file has its own name once it is whole.
        shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy2(ROOT / "app.py", copy)
    for file, text in texts.items():
        (copy / file).write_text(text)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def run_past(name: str, folder: Path, seeds: range, given: Sequence[str]) -> tuple[int, str]:
    """Run seeds with a past fault; return the exit code and what was printed."""
    with copied(name, folder) as copy:
        command = [sys.executable, "scripts/simulate.py", "--seeds", f"{seeds.start}-{seeds.stop - 1}", *given]
        done = subprocess.run(
            command, cwd=copy, stdout=subprocess.PIPE, text=True, check=False,
            timeout=IMPORTS_WITHIN + SEED_WITHIN * len(seeds),
        )  # fmt: skip
    return done.returncode, done.stdout


def run_all(folder: Path, seeds: range, given: Sequence[str]) -> int:
    """Print in which seed each past fault is found first, and by what."""
    codes, width = [], max(map(len, names()))
    for name in names():
        code, said = run_past(name, folder, seeds, ["--first", *given])
        found = VIOLATION.match(said)
        if code == 1 and found:
            print(f"{name:{width}}  found in seed {found[1]}: {found[2]}", flush=True)
        else:
            print(f"{name:{width}}  {'not found in these seeds' if code == 0 else f'ended with {code}'}", flush=True)
        codes.append(code)
    return max(codes)
