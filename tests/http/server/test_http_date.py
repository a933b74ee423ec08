# SPDX-License-Identifier: Apache-2.0
"""The header Date."""

from pontil.http.server.service import HttpDate


def test_it_follows_the_clock_by_the_second() -> None:
    times = iter([784111777.0, 784111777.9, 784111778.0, 784111777.5])
    date = HttpDate(lambda: next(times))
    shown = [date.now for _ in range(4)]
    first, second = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT"
    assert shown == [first, first, second, first]
