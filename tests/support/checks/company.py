# SPDX-License-Identifier: Apache-2.0
"""One sequence in batches of every kind, which must not change its tokens (C16)."""

from effort import examples
from tiny import drain, rig, sequence

from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import Purpose
from pontil.runtime.models.model import Model

# The first cross the end of a block.
TOKENS = examples(12, 24)
COMPANY = examples(8, 12)


def alone_in_company_and_again(model: Model, tokens: list[int], cells: str = "auto") -> list[int]:
    """Generate TOKENS tokens after the first 150 of a prompt: alone, in a large batch with chunked prefill, and by
    recomputation from the middle. `cells` is the type of the KV cache."""
    alone = rig(model, cells=cells).engine
    alone.add(sequence("a", tokens[:150], TOKENS))
    expected = drain(alone)["a"]
    crowded = rig(model, blocks=600, budget=90, cells=cells).engine
    for number in range(COMPANY):
        end = len(tokens) if number == COMPANY - 1 else 4 + 16 * number
        crowded.add(sequence(f"n{number}", tokens[number:end], 5 + number, temperature=1.3, seed=number))
    crowded.step()
    crowded.add(sequence("a", tokens[:150], TOKENS))
    assert drain(crowded)["a"] == expected
    replay = sequence("a", tokens[:150], TOKENS)
    replay.output += expected[:9]
    again = rig(model, budget=33, cells=cells).engine
    again.add(replay)
    drain(again)
    assert replay.output == expected
    return expected


def handed_over(model: Model, prompt: list[int], tokens: int, cells: str = "auto") -> list[int]:
    """Compute the prompt in one engine, copy its blocks into another's pool, and decode there."""
    kv_sender, kv_receiver = rig(model, cells=cells), rig(model, cells=cells)
    given, taken = sequence("a", prompt, tokens), sequence("a", prompt, tokens)
    given.purpose = Purpose.HANDOVER
    kv_sender.engine.add(given)
    (output,) = kv_sender.engine.step()
    assert kv_receiver.engine.park(taken)
    kv_receiver.scheduler.memory.grow(taken, len(prompt))
    kv_receiver.storage.own[taken.blocks] = kv_sender.storage.own[given.blocks]
    kv_receiver.engine.promote(taken, len(prompt), [Known(0, output.ids[:1])])
    return drain(kv_receiver.engine)["a"]
