# SPDX-License-Identifier: Apache-2.0
"""The page of models names every architecture that the registry can build, and no other."""

import re
from pathlib import Path

from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.families.registry import decoder_class

PAGE = Path(__file__).resolve().parents[3] / "docs/guide/models.md"


def test_the_page_has_a_row_for_every_architecture_that_can_be_built() -> None:
    rows = [
        line.split("|")[1:-1]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `") and "model_type" not in line
    ]
    models = [(cell, gguf.strip()) for cell, _, gguf, _ in (row for row in rows if len(row) == 4)]
    named = {name: gguf for cell, gguf in models for name in re.findall(r"`(\w+)`", cell)}
    assert named.keys() == ARCHITECTURES.keys()
    for name, row in ARCHITECTURES.items():
        assert (named[name] == "yes") == (row.gguf is not None)
        assert decoder_class(row.target)
