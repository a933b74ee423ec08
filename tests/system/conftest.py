# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by tests of whole systems."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from cut_load import OpenStream, StreamedAnswer
from link_table import WRITE
from network_hosts import NAMES, TWO_PROXIES, Hosts
from served import Served, launched
from tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    write_tiny_llama(folder)
    return str(folder)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The default launch, one prefill and one decode worker of the real model. Files share it, since a start takes both
    cores for seconds; a test that kills parts of it leaves it whole."""
    with launched(tmp_path_factory.mktemp("pair")) as served:
        yield served


def made_hosts(names: tuple[str, ...] = NAMES) -> Iterator[Hosts]:
    """Make the network namespaces, and remove them at the end."""
    if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("curl"):
        pytest.skip("network namespaces need root, iproute2 and curl")
    made = Hosts(names)
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        if not any(refusal in error.stderr for refusal in ("not permitted", "ermission denied")):
            raise
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    yield made
    made.remove()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    yield from made_hosts()


@pytest.fixture(scope="module")
def module_hosts() -> Iterator[Hosts]:
    yield from made_hosts()


@pytest.fixture
def node_hosts() -> Iterator[Hosts]:
    """Hosts that share a worker, and one more."""
    yield from made_hosts(("proxy", "first", "second", "single"))


@pytest.fixture(scope="module")
def two_proxy_hosts() -> Iterator[Hosts]:
    yield from made_hosts(TWO_PROXIES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(WRITE, action="store_true", help="write what was measured into docs/operate/hosts.md")


@pytest.fixture(scope="module")
def uncut(joined: Hosts) -> StreamedAnswer:
    """The answer of the stream while no link is cut between the hosts that a module has `joined`."""
    return OpenStream(joined).whole()
