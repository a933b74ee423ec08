# SPDX-License-Identifier: Apache-2.0
"""Plain runs of random models for an answer of their first stage."""

from functools import cache
from typing import Any

from numpy.typing import NDArray
from random_models import PlainRun, plain_run, random_model

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.streams.text_stream import TextStream
from pontil.runtime.tokenizer.tokenizer import Tokenizer


class TextItems:
    """Stands for the writer of a TextStream: keeps its items."""

    is_full = False

    def __init__(self) -> None:
        self.items = list[bytes]()

    def put(self, walk: str, item: NDArray[Any]) -> None:
        self.items.append(item.tobytes())

    def finish(self) -> None: ...


@cache
def plain_run_of(graph: str, ids: tuple[int, ...], stop: tuple[str, ...], tokenizer: Tokenizer) -> PlainRun:
    """Return the plain run of a random model for an answer."""
    made: Any = TextItems()
    text = TextStream(made, tokenizer, SamplingParams(max_tokens=len(ids), seed=0, stop=stop), frozenset())
    text.take(0, list(ids))
    text.finish()
    return plain_run(random_model(int(graph.rpartition("-")[2])), made.items)
