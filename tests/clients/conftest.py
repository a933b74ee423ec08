# SPDX-License-Identifier: Apache-2.0
"""The launch that real clients talk to, and the table of what passed."""

from collections.abc import Iterator

import pytest
from agent_shapes import Shape
from agent_table import write_requests, write_sessions
from client_table import WRITE, Outcomes, write_page
from effort import is_long
from oracle import at_rest
from served import Served, launched
from tiny_llama import write_tiny_llama


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(WRITE, action="store_true", help="write the tables of docs/guide/clients.md from this run")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The small pair. With `--long` that has the real model, of which no answer is known to go on."""
    if not is_long():
        shared: Served = request.getfixturevalue("small_pair")
        at_rest(shared)
        yield shared
        return
    folder = tmp_path_factory.mktemp("clients")
    write_tiny_llama(folder / "small", num_layers=12, max_model_len=2048, dtype="bfloat16")
    with launched(folder, "--share-devices", "--model", str(folder / "small"),
                  "--kv-cache-memory", "32MiB") as small:  # fmt: skip
        yield small


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The outcome of each client's steps, which the tests note."""
    noted: Outcomes = {}
    yield noted
    if request.config.getoption(WRITE, default=False):
        write_page(noted)


@pytest.fixture(scope="session")
def agent_outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The outcome of the coding agent's session with each client, which the tests note."""
    noted: dict[str, str] = {}
    yield noted
    if request.config.getoption(WRITE, default=False) and noted:
        write_sessions(noted)


@pytest.fixture(scope="session")
def agent_shapes(request: pytest.FixtureRequest) -> Iterator[dict[str, Shape]]:
    """The requests of coding agents, which the tests note once they were answered."""
    noted: dict[str, Shape] = {}
    yield noted
    if request.config.getoption(WRITE, default=False) and noted:
        write_requests(noted)
