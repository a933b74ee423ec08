# SPDX-License-Identifier: Apache-2.0
"""Safeguards against harmful bodies, shared by all routes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pontil.http.access.in_flight_bodies import InFlightBodies
from pontil.http.intake.grammar_check import GrammarCheck


class Intake:
    """The record of in-flight bodies and the grammar check; `knows` says whether a caller still has a key. Call `close`
    after the server has stopped."""

    def __init__(self, in_flight: Path | None, knows: Callable[[str], bool]) -> None:
        self.in_flight, self.grammars, self.knows = InFlightBodies(in_flight), GrammarCheck(), knows

    async def close(self, app: Any = None) -> None:
        self.grammars.close()
        self.in_flight.close()
