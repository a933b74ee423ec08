# SPDX-License-Identifier: Apache-2.0
"""The limits of a key over several proxies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pontil.runtime.errors import TooManyRequests
from pontil.runtime.proxy.admission.rate_limits import RateLimits
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.proxy.siblings.usage_table import UsageTable

KEY = Allowance(requests=3, rate=6.0, token_rate=600.0)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[list[UsageTable]]:
    made = [UsageTable(tmp_path / "table", number, 3, f"proxy-{number}") for number in range(3)]
    yield made
    for one in made:
        one.close()


def limits_of(table: UsageTable) -> RateLimits:
    return RateLimits(lambda: 0.0, table)


def admitted(limits: RateLimits, now: float, allowance: Allowance = KEY, tokens: int = 10) -> bool:
    try:
        limits.check(Ticket(caller="ann", allowance=allowance), 1, tokens, now)
    except TooManyRequests:
        return False
    limits.enter("ann", 1, tokens, now)
    return True


def test_what_is_in_flight_anywhere_counts_everywhere(tables: list[UsageTable]) -> None:  # F5
    one, two, three = map(limits_of, tables)
    allowance = Allowance(requests=3)
    assert [admitted(limits, 0.0, allowance) for limits in (one, two, three, one, two)] == [True] * 3 + [False] * 2
    two.leave("ann", 1, 10)
    assert admitted(three, 0.0, allowance) and not admitted(two, 0.0, allowance)
    assert admitted(two, 0.0, Allowance(requests=4)), "a refusal counts nothing"


def test_of_two_that_ask_at_once_at_least_one_sees_the_other(tables: list[UsageTable]) -> None:
    one, two = limits_of(tables[0]), limits_of(tables[1])
    allowance = Allowance(requests=1)
    one.check(Ticket(caller="ann", allowance=allowance), 1, 0, 0.0)
    with pytest.raises(TooManyRequests):
        two.check(Ticket(caller="ann", allowance=allowance), 1, 0, 0.0)
    one.state("ann")  # what followed its check was refused
    two.check(Ticket(caller="ann", allowance=allowance), 1, 0, 0.0)


def test_a_rate_is_one_for_all(tables: list[UsageTable]) -> None:
    all_limits = list(map(limits_of, tables))
    begun, now = 0, 0.0
    # A minute's worth at once, then as much as the rate gives back, however the requests are spread.
    for step in range(240):
        now = step * 0.5
        for limits in all_limits:
            limits.look_around(now)
        if admitted(all_limits[step % 3], now):
            begun += 1
            all_limits[step % 3].leave("ann", 1, 10)
    assert 6 + 6 * now / 60 - 1 <= begun <= 6 + 6 * now / 60 + 1


def test_a_proxy_that_is_gone_uses_nothing_and_its_successor_begins_anew(
    tables: list[UsageTable], tmp_path: Path
) -> None:  # fmt: skip
    one, two = limits_of(tables[0]), limits_of(tables[1])
    allowance = Allowance(requests=2)
    assert admitted(one, 0.0, allowance) and admitted(one, 0.0, allowance) and not admitted(two, 0.0, allowance)
    tables[1].forget("proxy-0")
    assert admitted(two, 0.0, allowance)
    successor = UsageTable(tmp_path / "table", 0, 3, "proxy-0 again")
    again = limits_of(successor)
    assert admitted(again, 0.0, allowance) and not admitted(again, 0.0, allowance)
    assert not admitted(two, 0.0, allowance)
    successor.close()


def test_orphans_count(tables: list[UsageTable]) -> None:
    one = limits_of(tables[0])
    one.orphans = {"ann": (3, 300)}
    assert not admitted(one, 0.0) and one.check(Ticket(caller="bob", allowance=KEY), 1, 1, 0.0) is None  # type: ignore[func-returns-value]
