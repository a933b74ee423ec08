# SPDX-License-Identifier: Apache-2.0
"""The engine's bench compares its figures with what the machine can do, and appends them to a table."""

from pathlib import Path

import bench_engine
import pytest
import roofline
from processor_name import processor_name

from pontil.runtime.loaders.builtin import resolve_model
from pontil.runtime.loaders.checkpoint import open_checkpoint

RESULT = {
    "kernels": "avx2-01234567", "quantization": "none", "peak": 55.1, "read": 20.3, "prefill": [600.5, 610.0],
    "step 1": [16.0, 17.0], "step 8": [30.0, 31.0], "step 32": [90.0, 99.0],
    "share": {"prefill": 0.82, "step 1": 0.15, "step 8": 0.65, "step 32": 0.87},
}  # fmt: skip


def test_a_result_becomes_the_last_row_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "measurements.md"
    heading = "# M\n\n## By processor\n\nWords.\n\n| a | b |\n|---|---|\n"
    page.write_text(heading + "\n## Next\n\ntext\n")
    monkeypatch.setattr(bench_engine, "MEASUREMENTS", page)
    monkeypatch.setattr("sys.argv", ["bench_engine.py", "--kernels", "avx2"])
    for _ in range(2):
        bench_engine.record(RESULT)
    table, _, rest = page.read_text().partition("\n\n## Next\n")
    assert table.startswith(heading) and rest == "\ntext\n"
    rows = table.removeprefix(heading).splitlines()
    assert len(rows) == 2 and rows[0] == rows[1]
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[0] == processor_name()
    assert cells[1:] == [
        "avx2", "none", "55.1", "20.3", "600.5 (82 %)", "16 (15 %)", "30 (65 %)", "90 (87 %)",
        "`taskset -c N scripts/bench_engine.py --kernels avx2`",
    ]  # fmt: skip


def test_products_are_the_numbers_of_the_weights() -> None:
    """Every number of a matrix is multiplied once for a row."""
    checkpoint = open_checkpoint(resolve_model("smollm2-135m-instruct", bench_engine.CACHE))
    layers, head = roofline.products(checkpoint.config)
    # The model has 134,515,008 parameters, of which 61 norms have 576 each.
    assert layers + head == 134_515_008 - 61 * 576
