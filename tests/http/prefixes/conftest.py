# SPDX-License-Identifier: Apache-2.0
"""A site whose leases outlive a worker's death."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_site import ScriptedSite, site

from pontil.runtime.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), failover_timeout=60.0) as served:
        yield served
