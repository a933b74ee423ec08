# SPDX-License-Identifier: Apache-2.0
"""Requests whose attempts died, were cancelled or gave up in mid-prompt: cached and computed tokens add up to the
prompt, in the ledger and in the usage log (A11)."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from live_proxy import LiveProxy, collect, prompts_balance, row, submitted, until
from scripted_worker import ScriptedWorker, silent

from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Cancel, Failed, Progress, Submit

PROMPT = list(range(5, 280))
PARAMS = SamplingParams(max_tokens=9, seed=1)
Play = Callable[..., None]


def fails(worker: ScriptedWorker, submit: Submit) -> None:
    worker.say(Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no room", 503))


def answers(worker: ScriptedWorker, submit: Submit, index: int, cached: int, first: int | None) -> None:
    """Send the rest of the answer, with the worker's counts of the prompt."""
    counts = {"prompt_tokens": 275, "cached_tokens": cached, "computed_tokens": 275 - cached}
    worker.say(
        worker.tokens(
            submit, index, [70], first_cached_tokens=first, finish_reason="stop", generated_tokens=1, **counts
        )
    )


async def audited(live_proxy: LiveProxy, path: Path, cached: int, computed: int | None) -> None:
    """Check that the books are equal, and that the request's row has these figures."""
    assert live_proxy.proxy.idle and live_proxy.proxy.ledger.imbalance == 0
    prompts_balance(live_proxy.proxy)
    await live_proxy.proxy.close()
    with closing(open_to_read(path)) as database:
        assert [one.text for one in audit(database) if not one.equal] == []
        found = database.execute("SELECT prompt_tokens, cached_tokens, computed_tokens FROM requests").fetchall()
    assert list(map(tuple, found)) == [(275, cached, computed)]


@pytest.mark.parametrize("end", ["failed", "died elsewhere"])
@pytest.mark.parametrize("first", [0, 16])
def test_the_next_attempt_finds_what_the_dead_one_computed(play: Play, tmp_path: Path, first: int, end: str) -> None:
    """The mechanism of "of 275 prompt tokens 0 were cached and 19 computed": attempts that end in mid-prompt state
    nothing, and the worker states what the first found beside what this one computed."""
    path = tmp_path / "usage.db"

    async def scene(live_proxy: LiveProxy) -> None:
        prefill = await live_proxy.worker("prefill:0", script=silent)
        decode = await live_proxy.worker("decode:0", script=silent)
        stream = live_proxy.submit(PROMPT, PARAMS)
        submit = await submitted(prefill)
        if end == "failed":
            fails(prefill, submit)
        else:
            live_proxy.proxy.take_table([row(prefill), row(decode)])
            live_proxy.proxy.take_table([row(prefill), row(decode, "exited")])
        worker = prefill if end == "died elsewhere" else decode
        again = await submitted(worker)
        while again.attempt == 0:
            again = await submitted(worker)
        assert again.phase == "whole"
        answers(worker, again, 0, 256, first)
        assert (await collect(stream))[1] == [70]
        await audited(live_proxy, path, first, 275 - first)

    play(scene, usage_log=str(path))


@pytest.mark.parametrize(("first", "next_cached"), [(100, 0), (0, 100), (100, 200)])
def test_a_next_worker_has_its_own_cache(play: Play, tmp_path: Path, first: int, next_cached: int) -> None:
    """The decode worker repeated what the prompt's worker had found, which did not arrive; another one computes
    anew."""
    path = tmp_path / "usage.db"

    async def scene(live_proxy: LiveProxy) -> None:
        prefill = await live_proxy.worker("prefill:0", script=silent)
        decode = await live_proxy.worker("decode:0", script=silent)
        stream = live_proxy.submit(PROMPT, PARAMS)
        submit = await submitted(decode)
        decode.say(decode.tokens(submit, 0, [10, 11], prompt_tokens=275, cached_tokens=first))
        await until(lambda: stream.usage.completion_tokens == 2)
        live_proxy.proxy.take_table([row(prefill), row(decode)])
        live_proxy.proxy.take_table([row(prefill), row(decode, "exited")])
        await submitted(prefill)
        answers(prefill, await submitted(prefill), 2, next_cached, None)
        assert (await collect(stream))[1] == [10, 11, 70]
        await audited(live_proxy, path, first, 275 - first)

    play(scene, usage_log=str(path))


@pytest.mark.parametrize("first", [0, 16])
def test_what_a_worker_told_before_it_died_in_mid_prompt_counts(play: Play, tmp_path: Path, first: int) -> None:
    """Its successor has its KV, and finds what the dead attempt computed: 64 tokens that were not cached before."""
    path = tmp_path / "usage.db"

    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit(PROMPT, PARAMS)
        submit = await submitted(worker)
        worker.say(Progress(worker.incarnation, worker.proxy, submit.request_id, 0, 64, first))
        await until(lambda: stream.request.account.cached_by == {0: {"whole": first}})
        live_proxy.proxy.take_table([row(worker)])
        live_proxy.proxy.take_table([row(worker, "exited")])
        again = await live_proxy.worker("mixed:0", script=silent)
        submit = await submitted(again)
        assert submit.attempt == 1
        answers(again, submit, 0, 64, None)
        end = (await collect(stream))[2]
        assert end.usage.cached_tokens == first
        await audited(live_proxy, path, first, 275 - first)

    play(scene, usage_log=str(path))


def test_what_is_heard_too_late_is_the_dead_attempts(play: Play, tmp_path: Path) -> None:
    """The first attempt's opening frame arrives after the second has begun: it is in its worker's book alone."""
    path = tmp_path / "usage.db"

    async def scene(live_proxy: LiveProxy) -> None:
        worker = await live_proxy.worker("mixed:0", script=silent)
        stream = live_proxy.submit(PROMPT, PARAMS)
        submit = await submitted(worker)
        fails(worker, submit)
        again = await submitted(worker)
        counts = {"prompt_tokens": 275, "cached_tokens": 0, "computed_tokens": 275}
        worker.say(worker.tokens(submit, 0, [70], **counts))
        answers(worker, again, 0, 274, 0)
        assert (await collect(stream))[1] == [70]
        assert live_proxy.proxy.ledger.books[worker.incarnation].prompts.late == 275
        await audited(live_proxy, path, 0, 275)

    play(scene, usage_log=str(path))


def test_nothing_is_kept_for_a_worker_that_died(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """Its cancels would be tried for seconds, and then be told of as if somebody had to look into them."""

    async def scene(live_proxy: LiveProxy) -> None:
        prefill = await live_proxy.worker("prefill:0", script=silent)
        decode = await live_proxy.worker("decode:0", script=silent)
        dispatcher, send = live_proxy.proxy.dispatcher, live_proxy.proxy.dispatcher.send
        dispatcher.send = lambda message: not isinstance(message, Cancel) and send(message)
        dispatcher.cancels.post(decode.incarnation, Cancel(live_proxy.proxy.incarnation, decode.incarnation, "r", 0))
        assert len(dispatcher.cancels) == 1
        live_proxy.proxy.take_table([row(prefill), row(decode)])
        live_proxy.proxy.take_table([row(prefill), row(decode, "exited")])
        assert len(dispatcher.cancels) == 0

    play(scene)
