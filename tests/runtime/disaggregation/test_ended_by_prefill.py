# SPDX-License-Identifier: Apache-2.0
"""Handoffs whose prefill worker ends the request itself, over shared memory."""

from contextlib import closing

import pytest
from pair1p1d import Pair1P1D
from staged import MEMORIES

from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.disaggregation.states import ReceiveEvent, ReceiveState, SendEvent


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("word", [True, False])
def test_blocks_of_an_answer_that_ended_with_its_first_token_are_no_fault(memory: str, word: bool) -> None:
    """The prefill worker's word on it comes after its blocks were free; a peer that says nothing has failed."""
    with closing(Pair1P1D(memory)) as both:
        sent = both.kv_sender.begin("t", "D", 0.0)
        assert sent is not None
        both.kv_sender.announce(sent, [3, 4], 0.0)
        both.kv_sender.announce(sent, [3, 4, 9], 0.0)
        both.kv_sender.release("t", SendEvent.FINISHED, 0.0, "finished")
        chunk, later = both.letting_go.announced
        take = both.kv_receiver.begin("t", "P", 3, 0.0)
        both.kv_receiver.announced(take, chunk, [5, 6], 0.0)
        both.poll_until(lambda: not take.pending)
        # It was on its way when the blocks were free.
        both.kv_receiver.announced(take, later, [7], 0.0)
        both.poll_until(lambda: not take.pending)
        assert take.state is ReceiveState.PULLING and take.error is None
        if word:
            both.kv_receiver.end("t", ReceiveEvent.FINISHED, 1.0)
        both.kv_receiver.poll(DEADLINES.kv_stall_timeout + 1.0)
        assert take.state is (ReceiveState.CANCELLED if word else ReceiveState.FAILED)
        assert ("reused" in str(take.error)) is not word
