# SPDX-License-Identifier: Apache-2.0
"""Names of a request's fields that were accepted and had no effect (F3). The reply names them in a header."""

import re

HEADER = "x-pontil-ignored"
MOST_NAMES = 24
MOST_CHARACTERS = 64
"""Of one name: names may come from clients, and may be as long as a body."""
INDEX = re.compile(r"\[\d+\]")
UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class IgnoredFields:
    """The names of one request, in the order in which they were noted. A `strict` server accepts no such field unless
    its value asks for nothing; the readers of fields see to that."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.names: dict[str, None] = {}
        self.more = False

    def note(self, path: str) -> None:
        """Note a field by its path. Items of a list count as one field; beyond MOST_NAMES only that there are more is
        kept."""
        if self.more:
            return
        name = UNSAFE.sub("?", INDEX.sub("[]", path[: 4 * MOST_CHARACTERS]))
        self.names.setdefault(name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}...")
        if len(self.names) > MOST_NAMES:
            self.names.popitem()
            self.more = True

    @property
    def headers(self) -> dict[str, str]:
        """The header that names the fields; none where there are none."""
        if not self.names:
            return {}
        return {HEADER: ", ".join([*self.names, "..."] if self.more else self.names)}
