# SPDX-License-Identifier: Apache-2.0
"""Predictions of each request's times, beside what happens in virtual time."""

import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_profile import small_profile
from virtual_fork import in_virtual_time

from pontil.runtime.errors import PontilError
from pontil.runtime.planner.planned_site import PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.trial import Asked, PlannedLoad, PlannedTrial
from pontil.runtime.proxy.balance.forecast import EACH, FIRST, LEARNING, Forecast, forecast_of
from pontil.runtime.proxy.routing.policy import WorkerLoad


def load(**given: Any) -> WorkerLoad:
    return WorkerLoad(
        "i", "decode:0", "decode", "e", **({"in_flight": 0, "free_blocks": 9, "seats": 16, "context": 2048} | given)
    )


def test_a_prediction_is_that_of_the_profile() -> None:
    """Steps take 10 ms, 1 ms a row and 0.5 ms a prompt token, and 1 us for each position that they read."""
    forecast = Forecast(small_profile())
    alone = forecast.first_token(load(), 512, is_pair=True)
    assert alone == pytest.approx(2 * (0.010 + 0.128) + 512 * 256e-6 + 0.0005 + 0.0002, rel=0.05)
    assert forecast.first_token(load(found=256), 512, is_pair=True) < 0.65 * alone
    assert forecast.first_token(load(uncomputed=512), 512, is_pair=True) > 1.5 * alone
    assert forecast.first_token(load(in_flight=8), 512, is_pair=False) > alone
    assert forecast.per_token(load(in_flight=7), 100, 56) == pytest.approx(0.010 + 8 * (0.001 + 128e-6 + 2e-5), rel=0.1)


def test_a_formula_takes_no_longer_for_a_longer_prompt() -> None:
    """It asks the profile's curves a few times, whatever the length and the number of steps."""
    forecast, asked = Forecast(small_profile()), [0]
    at = type(forecast.costs.prompt).at

    class Counted:
        def __init__(self, curve: Any) -> None:
            self.curve = curve

        def at(self, size: float) -> float:
            asked[0] += 1
            return float(at(self.curve, size))

    forecast.costs.prompt = Counted(forecast.costs.prompt)  # type: ignore[assignment]
    counts = []
    for prompt in (16, 100_000):
        asked[0] = 0
        forecast.first_token(load(), prompt, is_pair=True)
        counts.append(asked[0])
    assert counts[0] == counts[1] <= 4


def test_factors_are_learned_and_bounded() -> None:
    forecast = Forecast(small_profile())
    for _ in range(200):
        forecast.learn("decode", EACH, 0.02 * forecast.factor("decode", EACH), 0.03)
    assert forecast.factor("decode", EACH) == pytest.approx(1.5, rel=0.01)
    assert forecast.errors.means[EACH] < (1 - LEARNING) ** 100 + 0.02
    for _ in range(1000):
        forecast.learn("decode", FIRST, 1e9, 0.0)
    assert forecast.factor("decode", FIRST) == pytest.approx(0.01) and forecast.factor("prefill", FIRST) == 1.0


def questions() -> Iterator[Asked]:
    chance = random.Random(3)
    for _ in range(1000):
        yield [chance.randrange(100, 30_000) for _ in range(chance.randrange(64, 640))], chance.randrange(4, 8)


def predicted(path: str, topology: PlannedTopology) -> dict[str, Any]:
    site = PlannedSite(topology, planned_model(small_profile()), 0, {"profile": path})
    report = PlannedTrial(site, PlannedLoad(30, rate=3.0, seed=2), questions()).run()
    assert all(one.failure is None for one in report.requests)
    watch = site.proxy.proxy.load
    page = site.proxy.do(site.proxy.proxy.metrics.render).decode()
    site.close()
    return {"errors": watch.errors, "roles": sorted(role for role, _ in watch.factors), "page": page}


def test_what_is_predicted_is_about_what_happens(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(small_profile().text())

    def work() -> list[dict[str, Any]]:
        return [
            predicted(str(path), one) for one in (PlannedTopology(1, 1, 0, "always"), PlannedTopology(0, 0, 2, "auto"))
        ]

    pair, mixed = in_virtual_time(work)
    # Beside prompts that come later a mixed worker's tokens take longer than is known as they begin.
    assert max(pair["errors"].values()) < 0.35 and mixed["errors"][FIRST] < 0.35
    assert all('pontil_planner_error{time="first_token"}' in told["page"] for told in (pair, mixed))
    assert pair["roles"] == ["decode", "prefill"] and mixed["roles"] == ["mixed", "mixed"]


def test_a_profile_of_another_model_predicts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    forecast = Forecast(small_profile())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            forecast.compare("another")
    assert [record.message for record in caplog.records] == [
        "nothing is predicted: --profile is of small, and the workers' model is another"
    ]
    assert forecast.fit is False


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text("{}")
    for name in (str(path), str(tmp_path / "missing.json")):
        with pytest.raises(PontilError, match="--profile"):
            forecast_of(name)
    assert forecast_of(None) is None


def test_a_proxy_predicts_without_torch() -> None:
    code = "import app; import pontil.runtime.proxy.balance.load_watch, sys; print({'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
