# SPDX-License-Identifier: Apache-2.0
import io
from collections.abc import Iterator

from pontil.launcher.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticks() -> Iterator[float]:
    yield from (float(second) for second in range(100))


def test_counting_makes_no_new_line_on_a_pipe() -> None:
    out, clock = io.StringIO(), ticks()
    console = Console(out, lambda: next(clock))
    for text in ("weights 1 %", "weights 2.5 %", "warm-up"):
        console.progress("decode:0", text)
    assert out.getvalue() == "decode:0 | weights 1 %\ndecode:0 | warm-up\n"


def test_progress_stays_in_place_on_a_terminal_and_makes_way_for_a_line() -> None:
    console = Console(out := Terminal())
    console.progress("a", "1 %")
    console.line("done")
    assert out.getvalue() == "\r\x1b[Ka | 1 %\r\x1b[Kdone\n"


def test_a_reader_that_left_stops_nothing() -> None:
    out = io.StringIO()
    console = Console(out)
    out.close()
    console.line("lost")
