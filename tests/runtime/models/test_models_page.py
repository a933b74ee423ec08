# SPDX-License-Identifier: Apache-2.0
"""The page of models names every architecture that the registry can build, and no other."""

import re
from pathlib import Path

from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.registry import decoder_class

PAGE = Path(__file__).resolve().parents[3] / "docs/guide/models.md"


def test_the_page_has_a_row_for_every_architecture_that_can_be_built() -> None:
    rows = [line.split("|")[1:5] for line in PAGE.read_text().splitlines() if re.match(r"\| `", line)]
    named = {name: gguf.strip() for cell, _, gguf, _ in (row for row in rows if len(row) == 4)
             for name in re.findall(r"`(\w+)`", cell) if name not in ("model_type", "fp8", "mxfp4")}  # fmt: skip
    assert named.keys() == ARCHITECTURES.keys()
    for name, row in ARCHITECTURES.items():
        assert (named[name] == "yes") == (row.gguf is not None)
        assert decoder_class(row.target)
