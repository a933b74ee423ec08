# SPDX-License-Identifier: Apache-2.0
"""One CSV and one Markdown table from the points of a sweep.

    python scripts/sweep_table.py NAME OUT POINT.json ...

writes OUT.csv and OUT.md: a row for each point, in the order given, its name in the first column. Each file holds what
`app.py bench --json` printed; its last line counts, which of a search is the result.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any


def write(name: str, out: Path, points: list[Path]) -> None:
    rows: list[dict[str, Any]] = [{name: path.stem} | json.loads(path.read_text().splitlines()[-1]) for path in points]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    out.with_suffix(".md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), [Path(path) for path in sys.argv[3:]])
