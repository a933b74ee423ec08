# SPDX-License-Identifier: Apache-2.0
"""The place of a hub's models in the cache."""

from pathlib import Path

import pytest

from pontil.runtime.loaders.hub.hub_cache import RepositoryFolder, repository_of
from pontil.runtime.loaders.hub.hub_name import HubName


def test_a_snapshot_tells_its_repository(tmp_path: Path) -> None:
    folder = RepositoryFolder(tmp_path, "owner/my-model").snapshots / ("c" * 40)
    assert repository_of(folder) == "owner/my-model"
    assert [repository_of(Path(path)) for path in ("/", "model", "/models/llama", "/a/snapshots/b")] == [None] * 4


@pytest.mark.parametrize("content", [b"", b"main", b"../../x", b"\xff" * 40, b"c" * 41])
def test_a_damaged_ref_is_none(tmp_path: Path, content: bytes) -> None:
    folder = RepositoryFolder(tmp_path, "owner/model")
    folder.refs.mkdir(parents=True)
    (folder.refs / "main").write_bytes(content)
    assert folder.found(HubName("owner/model")) is None
