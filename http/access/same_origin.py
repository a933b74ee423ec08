# SPDX-License-Identifier: Apache-2.0
"""Pages of other origins may not act as the operator whose browser shows them (cross-site request forgery). Pure.

On the server's own machine the routes of /admin/ need no key, so that any page could ask for them there. Browsers say
with each request where it comes from (Fetch standard, Fetch Metadata); programs say nothing of it.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

ITS_OWN = ("same-origin", "none")
READING = ("GET", "HEAD")
JSON = "application/json"


def foreign_page(method: str, headers: Mapping[str, str]) -> str | None:
    """Return why a request is one of another origin's page, or None. A link to what is only read may be followed; a
    frame, which the operator need not even see, may not."""
    site = headers.get("sec-fetch-site")
    is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    is_link = method in READING and is_visit
    if site is not None and site not in ITS_OWN and not is_link:
        return "a page of another site asked for this: open /admin/ui of this server itself"
    origin = headers.get("origin")
    if origin is not None and not is_of(origin, headers.get("host", "")):
        return f"a page of {ascii(origin)[1:-1]:.100} asked for this: open /admin/ui of this server itself"
    if method not in (*READING, "OPTIONS") and not headers.get("content-type", "").lower().startswith(JSON):
        # Any page may send a form or plain text to any server, and an old browser says nothing of where it comes from.
        return f"what is to be done must be told as JSON: send it with content-type: {JSON}"
    return None


def is_of(origin: str, host: str) -> bool:
    """Return whether an origin is the one that a Host header names. Its scheme may be that of a proxy in front."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()
