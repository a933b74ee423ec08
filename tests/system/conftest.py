# SPDX-License-Identifier: Apache-2.0
"""What tests of whole systems share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served, launched

from pontil.runtime.loaders.synthetic import write_tiny_llama

HERE = Path(__file__).parent
SHARING = ("test_faults", "test_readme", "test_same_answers", "test_structured")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run side by side (`--dist loadgroup`), a file stays together, and so do those that share a system."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("pair" if item.path.stem in SHARING else item.path.stem))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    write_tiny_llama(folder)
    return str(folder)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """What a launch without options starts, one prefill and one decode worker of the real model; a format of calls is
    named besides. Files share it, as a start takes both cores for seconds; who kills parts of it leaves it whole."""
    with launched(tmp_path_factory.mktemp("pair"), "--tool-call-parser", "hermes") as served:
        yield served
