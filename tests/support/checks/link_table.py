# SPDX-License-Identifier: Apache-2.0
"""The table of cut links in docs/operate/hosts.md, as measured."""

import re
from dataclasses import dataclass

from served import ROOT

PAGE = ROOT / "docs" / "operate" / "hosts.md"
# The option of pytest that writes it.
WRITE = "--link-table"
HEAD = (
    "| link, and what is lost | seconds | first answer after | longest answer | failed | pause of a stream | "
    "link used after |\n"
    "|---|---|---|---|---|---|---|\n"
)
ROWS = re.compile(r"^\| link, and what is lost \|.*\n(?:\|.*\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CutOutcome:
    """The measurements of one cut of so many seconds: seconds from the cut to the end of the first answer to a request
    that came after it, of the longest request, of the longest pause of a stream that was open then, and from the moment
    at which the link is back to the end of the first handoff; and how many requests failed, of all."""

    link: str
    seconds: float
    answered: float
    longest: float
    failed: int
    requests: int
    pause: float
    back: float

    @property
    def row(self) -> str:
        return (
            f"| {self.link} | {self.seconds:g} | {self.answered:.1f} s | {self.longest:.1f} s | "
            f"{self.failed} of {self.requests} | {self.pause:.1f} s | {self.back:.1f} s |\n"
        )

    @property
    def key(self) -> str:
        return f"| {self.link} | {self.seconds:g} |"


def write_page(outcome: CutOutcome) -> None:
    """Put a row into the table of the page, in place of one of the same cut."""
    text = PAGE.read_text()
    found = ROWS.search(text)
    assert found is not None, "the page has the table"
    rows = found[0].splitlines(keepends=True)[2:]
    places = [place for place, row in enumerate(rows) if row.startswith(outcome.key)]
    first = places[0] if places else len(rows)
    rows[first : first + 1] = [outcome.row]
    links = list(dict.fromkeys(link_of(row) for row in rows))
    rows.sort(key=lambda row: (links.index(link_of(row)), float(row.split("|")[2])))
    PAGE.write_text(text[: found.start()] + HEAD + "".join(rows) + text[found.end() :])


def link_of(row: str) -> str:
    return row.split("|")[1]
