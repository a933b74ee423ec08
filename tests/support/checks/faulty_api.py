# SPDX-License-Identifier: Apache-2.0
"""A server under the conformance suite whose answers have one fault."""

import re
from collections.abc import Callable
from dataclasses import replace

from pontil.launcher.tools.conformance.api import Api, ApiAnswer
from pontil.launcher.tools.conformance.check import CheckOutcome, outcome
from pontil.launcher.tools.conformance.suite import CHECKS

Fault = Callable[[ApiAnswer], ApiAnswer]


class FaultyApi(Api):
    """A server whose answers have one fault."""

    fault: Fault = staticmethod(lambda answer: answer)

    def send(self, method: str, path: str, data: bytes | None = None) -> ApiAnswer:
        # The base class has slots, so that super() without arguments finds another class.
        return self.fault(Api.send(self, method, path, data))


def text(pattern: str, into: str) -> Fault:
    """A fault that changes the bytes of every answer."""
    return lambda answer: replace(answer, data=re.sub(pattern.encode(), into.encode(), answer.data))


def status(before: int, after: int) -> Fault:
    return lambda answer: replace(answer, status=after) if answer.status == before else answer


def found_with(fault: Fault, port: int, model: str, topic: str, part: str) -> CheckOutcome:
    """Return the outcome of the check with this part of its sentence, over a server whose answers have the fault."""
    check = next(one for one in CHECKS if one.topic == topic and part in one.name)
    broken = type("BrokenApi", (FaultyApi,), {"fault": staticmethod(fault)})
    return outcome(check, broken(f"http://127.0.0.1:{port}", model, {}))
