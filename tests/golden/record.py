# SPDX-License-Identifier: Apache-2.0
"""Write the golden records anew. Their diff is what a change means to those outside."""

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".", "tests/support/checks", "tests/support/fakes", "tests/support/models", "tests/world")


def main() -> None:
    sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
    # Before what imports the checkout as package pontil.
    import_module("app")
    from records import RECORDS, all_records

    made = dict(all_records())
    RECORDS.mkdir(exist_ok=True)
    for path in RECORDS.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (RECORDS / name).write_text(text)


if __name__ == "__main__":
    main()
