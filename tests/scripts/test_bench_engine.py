# SPDX-License-Identifier: Apache-2.0
"""The engine's bench compares its figures with what the machine can do, and appends them to a table."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import bench_engine
import bench_products
import pytest
import roofline
from kernels import opened
from tiny_llama import write_tiny_llama

from pontil.runtime.loaders.builtin import resolve_model
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.probe.processor_name import processor_name

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


def test_other_figures_are_rows_of_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "history.md"
    page.write_text("# H\n\n## Long contexts\n\n| a |\n|---|\n\n## Products\n\n| b |\n|---|\n")
    monkeypatch.setattr(bench_engine, "HISTORY", page)
    monkeypatch.setattr("sys.argv", ["bench_engine.py", "--contexts", "64"])
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    settings: dict[str, Any] = {
        "model": str(tmp_path / "tiny"), "dtype": "bfloat16", "quantization": "none", "kv_cache_dtype": "auto",
        "rows": [1], "prompt": 8, "rounds": 2, "threads": 1, "cpu": False, "record": True, "contexts": [64],
    }  # fmt: skip
    result = bench_engine.measure_contexts(Namespace(**settings), "torch")
    assert sorted(result["attention"]) == ["context 16", "context 64"] and result["attention"]["context 16"] == 0.0
    bench_engine.record_contexts(result, "tiny")
    with pytest.raises(SystemExit, match="has 512 positions at most"):
        bench_engine.measure_contexts(Namespace(**settings | {"contexts": [512]}), "torch")
    monkeypatch.setattr(bench_products, "OUTPUTS", 64)
    monkeypatch.setattr(bench_engine, "open_kernels", lambda *given: opened())
    monkeypatch.setattr(roofline, "bandwidth", lambda library: 2e9)
    monkeypatch.setattr(roofline, "peak", lambda library, dtype: 1e12)
    bench_engine.measure_products(Namespace(**settings), "auto")
    contexts, products = page.read_text().partition("## Products")[::2]
    assert [line.split(" | ")[4] for line in contexts.splitlines() if "taskset" in line] == ["16", "64"]
    rows = [line.split(" | ")[4:6] for line in products.splitlines() if "taskset" in line]
    assert rows == [[kind, count] for kind in ("Q4_K", "Q6_K", "Q8_0") for count in ("1", "8")]
