# SPDX-License-Identifier: Apache-2.0
"""Rates over the last seconds."""

from pontil.runtime.proxy.live_snapshot import WINDOW, RateMeter, RateMeters


def test_a_steady_counter_has_its_rate() -> None:
    meter = RateMeter()
    rates = [meter.add(now, 50 * now) for now in range(20)]
    assert rates[0] == 0 and all(rate == 50 for rate in rates[1:]) and len(meter.samples) <= WINDOW + 2


def test_a_rest_shows_within_the_window() -> None:
    meter = RateMeter()
    for now in range(10):
        meter.add(now, 100 * now)
    assert [meter.add(now, 900) for now in (10, 11, 12)][-1] == 0


def test_a_smaller_value_begins_anew() -> None:
    meter = RateMeter()
    meter.add(0, 1000)
    assert meter.add(1, 10) == 0 and meter.add(2, 30) == 20


def test_what_is_not_read_is_forgotten() -> None:
    meters = RateMeters()
    for name in ("a", "b"):
        meters.rate(name, 0, 0)
    meters.sweep()
    assert meters.rate("a", 1, 5) == 5
    meters.sweep()
    assert set(meters.meters) == {"a"}
