# SPDX-License-Identifier: Apache-2.0
"""Steps of a device make the tokens and logprobs of the plain runner, with one copy to it and one from it a step. The
host stands for the device, so that numbers are real."""

import pytest
import torch
from host_device import HostLink, device_engine
from tiny import VOCAB, build, drain, reference, rig, sequence

from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.logprobs import TokenLogprobs
from pontil.runtime.engine.sequence import Sequence
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.3, "top_p": 0.95, "top_k": 50, "seed": 3},
    {"temperature": 0.8, "min_p": 0.05, "logprobs": 3, "seed": 4},
    {"presence_penalty": 0.7, "frequency_penalty": -0.4, "repetition_penalty": 1.2, "logprobs": 0},
    {"logit_bias": ((5, 3.0), (9, -4.0)), "bad_token_ids": (7, 8), "temperature": 1.0, "prompt_logprobs": 2},
    {"allowed_token_ids": (1, 2, 3, 50), "temperature": 2.0, "n": 3, "logprobs": 2},
    {"logprobs": 1, "logprob_token_ids": (4, 90), "temperature": 0.5},
]


def company() -> list[Sequence]:
    lengths = (1, 15, 16, 70, 130, 33, 90)
    return [
        sequence(f"s{place}", prompt(length, place), 9 + place, **settings)
        for place, (length, settings) in enumerate(zip(lengths, SETTINGS, strict=True))
    ]


def run(engine: Engine) -> tuple[dict[str, list[int]], list[Sequence]]:
    members = company()
    for one in members:
        engine.add(one)
    return drain(engine), members


def nearly(ours: list[TokenLogprobs], theirs: list[TokenLogprobs]) -> bool:
    for one, other in zip(ours, theirs, strict=True):
        assert [entry[0::2] for entry in one.entries] == [entry[0::2] for entry in other.entries]
        assert [entry[1] for entry in one.entries] == pytest.approx([entry[1] for entry in other.entries], abs=1e-4)
    return True


def test_tokens_and_logprobs_are_those_of_the_plain_runner(model: Model) -> None:
    expected, theirs = run(rig(model, budget=64).engine)
    link = HostLink()
    engine, _ = device_engine(model, budget=64, link=link)
    found, ours = run(engine)
    assert found == expected
    for one, other in zip(ours, theirs, strict=True):
        assert nearly(one.logprobs, other.logprobs)
        assert [made is None for made in one.prompt_logprobs] == [made is None for made in other.prompt_logprobs]
        assert nearly(one.prompt_logprobs[1:], other.prompt_logprobs[1:])  # type: ignore[arg-type]
