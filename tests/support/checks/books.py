# SPDX-License-Identifier: Apache-2.0
"""Consistency of a launch's usage log (A11), whatever was killed meanwhile."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pontil.launcher.roles import read_usage
from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.errors import PontilError


def differing(path: Path, request: Mapping[str, Any] | None = None) -> list[str]:
    """Return the differences in a usage log; empty where its proxy was killed before it had made one."""
    if not path.exists():
        return []
    try:
        database = open_to_read(path)
    except PontilError:
        assert request is None, "a proxy that runs has made its log"
        return []
    with closing(database):
        return [one.text for one in audit(database, request) if not one.equal]


def requests_that_differ(path: Path) -> list[str]:
    """Check closed requests one by one: in the log of a killed launch the sums may be older than the rows."""
    return [text for text in differing(path) if text.startswith("request ")]


def requests_by_key(path: Path) -> Counter[str]:
    """Count the requests in a usage log by the name of their key."""
    return Counter({row["api_key"]: row["requests"] for row in read_usage(path)})
