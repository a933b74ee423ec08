# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of open requests cost a part of the event loop's time, however many there are."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from pontil.runtime.accounting.usage_tables import Posted, RequestRow
from pontil.runtime.config import ProxyConfig
from pontil.runtime.proxy.bookkeeper import CHECKPOINT, REST, Bookkeeper
from pontil.runtime.proxy.request import Request
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# The processor's seconds of one row, and the seconds that a test looks on.
ROW, LONG = 25e-6, 10.0


class CountingBooks(Bookkeeper):
    """The books of requests that always move, in virtual time. `rows` were written at the times `written`."""

    def __init__(self, folder: Path) -> None:
        self.now = self.spent = 0.0
        self.rows, self.written = 0, list[float]()
        config = ProxyConfig("127.0.0.1", 0, "m", "m", "", "0", usage_log=str(folder / "usage.db"))
        super().__init__(config, "p", lambda: self.now, used=lambda: self.spent)
        assert self.log is not None
        self.log.post = self.post  # type: ignore[method-assign]

    def post(self, rows: Iterable[Posted], wanted: bool = False) -> None:
        moved = sum(isinstance(row, RequestRow) for row in rows)
        self.rows += moved
        self.spent += ROW * moved
        self.written += [self.now] * bool(moved)

    def run(self, seconds: float) -> None:
        self.rows, self.spent, self.written = 0, 0.0, []
        for _ in range(round(seconds / CHECKPOINT)):
            for request in self.open.values():
                request.entry.delivered += 1
            self.checkpoint()
            self.now += self.pause


@pytest.mark.parametrize("requests", [8, 100, 1000])
def test_the_state_of_open_requests_takes_a_bounded_part_of_the_time(
    requests: int, tmp_path: Path, tokenizer: Tokenizer
) -> None:  # A12
    books = CountingBooks(tmp_path)
    for number in range(requests):
        books.admit(
            Request.start(f"r{number}", [1], SamplingParams(max_tokens=9, seed=1), tokenizer, 0.0, ledger=books.ledger)
        )
    books.run(LONG)
    # One at least is due at the beginning.
    assert books.spent <= LONG / REST + requests * ROW
    gaps = [later - before for before, later in zip(books.written, books.written[1:], strict=False)]
    assert max(gaps) <= max(CHECKPOINT, REST * requests * ROW) + CHECKPOINT + 1e-6
    assert books.rows == requests * len(books.written), "they are written together, so that they agree"
    books.end()
