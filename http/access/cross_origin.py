# SPDX-License-Identifier: Apache-2.0
"""Cross-origin resource sharing (the Fetch standard): which pages in browsers may read from this server. Pure."""

import re
from collections.abc import Iterable, Mapping

ANY = "*"
EXPOSED = (
    "x-request-id, x-pontil-route, x-pontil-ignored, x-pontil-schema, x-pontil-sample-rate, x-pontil-stream, "
    "retry-after, traceparent"
)
# Names of headers that a page wants to send, in a list.
NAMES = re.compile(r"[A-Za-z0-9_, -]{1,1024}")
MAX_AGE_SECONDS = 600


class CrossOrigin:
    """The origins whose pages may read; "*" for all. Without any, no answer has a header of this kind."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self.origins = frozenset(origins)

    def headers(self, asked: Mapping[str, str], preflight: str | None = None) -> dict[str, str]:
        """Return the headers of an answer to a request with the headers `asked`. `preflight` are the methods of the
        path, where the browser is asking before it sends a request."""
        origin = asked.get("origin", "")
        if not self.origins or not origin:
            return {}
        # A cache must not give one origin the answer to another.
        given = {} if ANY in self.origins else {"vary": "origin"}
        if not self.origins & {ANY, origin.lower()}:
            return given
        given["access-control-allow-origin"] = ANY if ANY in self.origins else origin
        if preflight is None:
            return given | {"access-control-expose-headers": EXPOSED}
        given |= {"access-control-allow-methods": preflight, "access-control-max-age": str(MAX_AGE_SECONDS)}
        names = asked.get("access-control-request-headers", "")
        return given | ({"access-control-allow-headers": names} if NAMES.fullmatch(names) else {})
