# SPDX-License-Identifier: Apache-2.0
"""A model with recurrent layers in real workers of several ranks: the responses of one process, also after a kill."""

from pathlib import Path
from typing import Any

import pytest
from disturbed import MODEL, OPTIONS, DisturbedSite
from oracle import at_rest
from rank_answers import TOKENS, answers, group
from served import launched, wait_for
from streams import Streams
from tiny_hybrid import write_tiny_hybrid

pytestmark = pytest.mark.long


def hybrid(folder: Path) -> tuple[str, ...]:
    write_tiny_hybrid(folder / "hybrid", "bfloat16")
    named = ("--model", str(folder / "hybrid"), "--served-model-name", MODEL)
    return (*named, *OPTIONS, "--kv-cache-memory", "32MiB")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The responses of one process."""
    folder = tmp_path_factory.mktemp("alone")
    with launched(folder, "--role", "mixed", "--mixed", "cpu:0", *hybrid(folder)) as served:
        return answers(served)


@pytest.mark.parametrize("ranks", [1, 2])
def test_pairs_of_workers_answer_like_one_process(alone: list[dict[str, Any]], tmp_path: Path, ranks: int) -> None:
    """H4, H5."""
    lists = ("--prefill", group(ranks, 0), "--decode", group(ranks, 1), "--share-devices", "--disagg", "always")
    with launched(tmp_path, *lists, *hybrid(tmp_path)) as served:
        assert answers(served) == alone
        at_rest(served)
        site = DisturbedSite(served, TOKENS, is_real=False)

        def harm(streams: Streams) -> None:
            wait_for(lambda: streams.all_have(4), 60, "tokens of every stream")
            served.kill("decode:0", rank=ranks - 1)

        site.survives(harm, "decode:0")
