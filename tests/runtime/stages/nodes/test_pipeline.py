# SPDX-License-Identifier: Apache-2.0
"""Speech in, an answer, speech out: the three models of `speech-demo`, joined in one process without a server. It takes
seconds because all three are real."""

from collections.abc import Iterator
from pathlib import Path

import kernels
import pytest
import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.nodes.recognizer import Recognizer
from pontil.runtime.stages.nodes.speaker import Speaker
from pontil.runtime.stages.nodes.wav import write_wav
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.tokenizer import Tokenizer

BLOCKS = 40
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Engine:
    checkpoint = open_checkpoint(smollm2_path)
    library = kernels.opened()
    model = build_model(
        checkpoint.config, Weights(checkpoint.tensors(), torch.device("cpu"), torch.bfloat16, Packing.of(library))
    )
    config = checkpoint.config
    layout = KVLayout(16, config.num_layers, config.num_kv_heads, config.head_dim, "bfloat16", True)
    runner = ModelRunner(model, KVStorage(layout, BLOCKS, torch.device("cpu")))
    return Engine(runner, Scheduler(BlockPool(BLOCKS), layout, 1, StepBudget(256)))


def answered(engine: Engine, tokenizer: Tokenizer, question: str, most: int) -> Iterator[str]:
    """Yield the text of an answer as its tokens come."""
    text = Detokenizer(tokenizer)
    prompt = tokenizer.encode(PROMPT.format(question), add_special_tokens=False)
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    engine.add(Sequence("answer", prompt, SamplingParams(max_tokens=most, seed=1, temperature=0.0), frozenset({end})))
    while engine.has_work:
        for output in engine.step():
            yield text.add(output.ids)
    yield text.finish()


@pytest.mark.long
def test_a_spoken_question_has_a_spoken_answer(
    recognizer: Recognizer, engine: Engine, speaker: Speaker, smollm2: Tokenizer
) -> None:
    asked = write_wav(speaker.speak("What is the capital of France?"), speaker.rate)
    question = recognizer.recognize(asked).text
    assert question == "What is the capital of France?"
    spoken = speaker.stream(answered(engine, smollm2, question, 24))
    first = next(spoken)
    heard = recognizer.recognize(first + b"".join(spoken), speaker.rate).text
    assert heard == "The capital of France is Paris."
