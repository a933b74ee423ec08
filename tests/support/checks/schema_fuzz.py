# SPDX-License-Identifier: Apache-2.0
"""Requests drawn from a server's own schema, each answered as the schema says."""

from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

# Without the check that all valid input is accepted: rules across parameters and the context length are not in the
# schema.
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    negative_data_rejection,
]  # fmt: skip
HANG_SECONDS = 60
# These are answered with what happens from then on.
ENDLESS = ("/admin/events", "/admin/record")
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def fuzz_all(url: str, requests: int) -> "Counter[int]":
    """Send about so many requests, with a body or not, that fit or nearly fit; return how often each status came."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found: list[Any] = list(schema.get_all_operations())
    operations = [one.ok() for one in found if one.ok().path not in ENDLESS]
    posts = [operation for operation in operations if operation.method.upper() == "POST" and list(operation.body)]
    statuses: Counter[int] = Counter()
    for operation in operations:
        modes = MODES if operation in posts else MODES[:1]
        for mode in modes:
            fuzz(operation, mode, requests // (2 * len(posts)) if operation in posts else 5, url, statuses)
    return statuses


def fuzz(operation: Any, mode: Any, examples: int, url: str, statuses: "Counter[int]") -> None:
    """Call the operation this often, and count the statuses."""

    @settings(max_examples=examples, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        response = case.call(base_url=url, timeout=HANG_SECONDS)
        statuses[response.status_code] += 1
        # A body's size is checked before its content: this check does not know 413 as a refusal.
        checks = [check for check in CHECKS if response.status_code != 413 or check is not negative_data_rejection]
        case.validate_response(response, checks=checks)

    call()
