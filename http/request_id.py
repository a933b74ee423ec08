# SPDX-License-Identifier: Apache-2.0
"""X-Request-Id: the client's own when it is usable, else a new one; the same in answer, logs and workers (F6)."""

import re
import secrets

HEADER = "x-request-id"
USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(given: str | None) -> str:
    """A name that is safe in headers and logs."""
    return given if given is not None and USABLE.fullmatch(given) else secrets.token_hex(12)
