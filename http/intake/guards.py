# SPDX-License-Identifier: Apache-2.0
"""Safeguards against harmful bodies, shared by all routes."""

from pathlib import Path
from typing import Any

from pontil.http.access.in_flight_bodies import InFlightBodies
from pontil.http.intake.grammar_check import GrammarCheck


class Intake:
    """The record of in-flight bodies and the grammar check. Call `close` after the server has stopped."""

    def __init__(self, in_flight: Path | None = None) -> None:
        self.in_flight, self.grammars = InFlightBodies(in_flight), GrammarCheck()

    async def close(self, app: Any = None) -> None:
        self.grammars.close()
        self.in_flight.close()
