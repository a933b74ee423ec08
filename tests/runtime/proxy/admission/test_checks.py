# SPDX-License-Identifier: Apache-2.0
"""Size limits of requests, and how many are admitted."""

import pytest

from pontil.http.fields.sampling import mint_seed
from pontil.http.openai.chat.prompt_reader import token_budget
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.admission.control import REQUESTS_PER_SEAT, check_capacity
from pontil.runtime.proxy.fleet.registry_snapshot import context_length
from pontil.runtime.proxy.routing.policy import WorkerLoad

LOAD = WorkerLoad("m", "mixed:0", "mixed", "e", in_flight=0, free_blocks=10, seats=4, context=100)


@pytest.mark.parametrize(
    ("prompt", "wanted", "default", "budget"),
    [(10, None, 16, 16), (90, None, 16, 10), (10, None, None, 90), (10, 90, 16, 90), (99, 1, 16, 1)],
)
def test_budgets(prompt: int, wanted: int | None, default: int | None, budget: int) -> None:
    assert token_budget(prompt, wanted, default, 100, ("prompt", "limit")) == budget


@pytest.mark.parametrize(("prompt", "wanted", "param"), [(100, None, "prompt"), (100, 1, "prompt"), (10, 91, "limit")])
def test_what_does_not_fit_is_the_clients_mistake(prompt: int, wanted: int | None, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        token_budget(prompt, wanted, 16, 100, ("prompt", "limit"))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.code == "context_length_exceeded"
    assert str(caught.value).startswith("This model's maximum context length is 100 tokens. However, "), "clients look"


def test_a_number_of_many_digits_is_not_repeated() -> None:
    with pytest.raises(RequestError) as caught:
        token_budget(10, 10**4000, 16, 100, ("prompt", "limit"))
    assert len(str(caught.value)) < 200


def test_overload_is_refused_at_once() -> None:
    check_capacity([LOAD], 4 * REQUESTS_PER_SEAT - 1)
    with pytest.raises(Unavailable):
        check_capacity([LOAD], 4 * REQUESTS_PER_SEAT)
    check_capacity([], 0)


def test_the_context_is_the_shortest_of_all() -> None:
    assert context_length([LOAD]) == 100
    assert context_length([]) is None


def test_seeds_have_63_bits_and_differ() -> None:
    seeds = {mint_seed() for _ in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**63 for seed in seeds)
