# SPDX-License-Identifier: Apache-2.0
"""A reply tells what a client's grammar does to the process that compiles it, and the next grammar gets a new
process."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from hostile_grammars import HostileRequest, chain_of_rules, mixture
from process_state import has_ended
from served import wait_for

from pontil.http.fields.structured_output import STRUCTURE, structure_of
from pontil.http.fields.tools import TOOLS, tool_fields
from pontil.http.schema.parameter import read_all
from pontil.http.schema.reader import Fields
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.grammar.call_grammar import CallFrame, CallText, grammar_of_calls
from pontil.runtime.grammar.grammar import COMPILE_STACK_BYTES
from pontil.runtime.grammar.grammar_text import (
    grammar_of_regex,
    grammar_of_rules,
    grammar_of_schema,
    json_part,
)
from pontil.runtime.grammar.processes.bounded_child import ChildLimits
from pontil.runtime.grammar.processes.bounded_process import TOO_COMPLEX, GrammarProcess

GOOD = grammar_of_regex("[a-z]+")
DEEP = grammar_of_rules(chain_of_rules("{}", 8000)["structured_outputs"]["grammar"])
ROOT = Path(__file__).resolve().parents[4]


@asynccontextmanager
async def grammars(limits: ChildLimits | None = None, timeout: float = 60.0) -> AsyncIterator[GrammarProcess]:
    made = GrammarProcess(limits, timeout)
    try:
        yield made
    finally:
        made.end()


def test_replies() -> None:
    async def run() -> None:
        async with grammars() as process:
            assert await process.check(GOOD) is None
            assert "cannot be used" in (await process.check(grammar_of_rules("start: missing")) or "")
            assert await process.check(grammar_of_rules('start: <|im_start|> "é"')) is None, "of whatever vocabulary"
            assert "oneOf" in (
                await process.check(grammar_of_schema({"oneOf": [{"minimum": 1}, {"maximum": 5}]})) or ""
            )
            assert (process.started, process.crashed) == (1, 0)

    asyncio.run(run())


def test_a_crash_is_a_reply_and_the_next_grammar_finds_another_process() -> None:
    async def run() -> None:
        async with grammars() as process:
            for number in range(1, 3):
                assert await process.check(DEEP) == TOO_COMPLEX and process.pid is None
                assert await process.check(GOOD) is None
                assert (process.started, process.crashed) == (1 + number, number)

    asyncio.run(run())


def test_limits_are_the_kernels() -> None:
    async def run() -> None:
        async with grammars() as process:
            assert await process.check(GOOD) is None
            about = psutil.Process(process.pid)
            limit = {kind: about.rlimit(kind)[0] for kind in (psutil.RLIMIT_STACK, psutil.RLIMIT_AS, psutil.RLIMIT_CPU)}
            assert limit[psutil.RLIMIT_STACK] == COMPILE_STACK_BYTES
            assert 0 < limit[psutil.RLIMIT_AS] - about.memory_info().vms <= ChildLimits().memory
            used = about.cpu_times()
            left = limit[psutil.RLIMIT_CPU] - used.user - used.system
            assert 0 < left <= ChildLimits().cpu_seconds + 1
            assert about.rlimit(psutil.RLIMIT_CORE)[0] == 0

    asyncio.run(run())


@pytest.mark.parametrize("limits", [ChildLimits(cpu_seconds=1), ChildLimits(memory=16 << 20)])
def test_what_takes_too_much_is_too_complex(limits: ChildLimits) -> None:
    """The library's own fuel does not bound intersections of regular expressions: this one takes 2^40 steps and bytes.
    Grammars of clients are refused before (intersections.py)."""
    greedy = "start: A\nA: " + " & ".join(f"/(.*a.{{{number}}}b.*)/" for number in range(40))

    async def run() -> None:
        async with grammars(limits) as process:
            assert await process.check(greedy) == TOO_COMPLEX
            assert await process.check(GOOD) is None

    asyncio.run(run())


def test_waiting_for_a_reply_has_an_end() -> None:
    async def run() -> None:
        async with grammars(timeout=0.2) as process:
            await process.start()
            assert process.process is not None
            stopped = process.process
            os.kill(stopped.pid, signal.SIGSTOP)
            with pytest.raises(RequestError, match=r"more than 0.2 s to compile"):
                await process.check(GOOD)
            assert stopped.returncode == -signal.SIGKILL

    asyncio.run(run())


def test_who_leaves_takes_the_process_along_and_no_reply_is_mixed_up() -> None:
    async def run() -> None:
        async with grammars() as process:
            await process.start()
            assert process.process is not None
            left = process.process
            os.kill(left.pid, signal.SIGSTOP)
            asking = asyncio.create_task(process.check(grammar_of_rules("start: missing")))
            await asyncio.wait([asking], timeout=0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert left.returncode == -signal.SIGKILL
            assert await process.check(GOOD) is None and process.started == 2

    asyncio.run(run())


def test_one_that_somebody_killed_is_nobodys_fault() -> None:
    async def run() -> None:
        async with grammars() as process:
            await process.start()
            assert process.process is not None
            os.kill(process.process.pid, signal.SIGSTOP)
            asking = asyncio.create_task(process.check(GOOD))
            await asyncio.wait([asking], timeout=0.05)
            os.kill(process.process.pid, signal.SIGKILL)
            with pytest.raises(Unavailable, match="process that checks grammars could not be had"):
                await asking
            assert await process.check(GOOD) is None
            os.kill(process.process.pid, signal.SIGKILL)
            process.process.wait(60)
            assert await process.check(GOOD) is None, "between two grammars nobody notices"
            assert process.crashed == 0

    asyncio.run(run())


def test_a_group_that_is_told_to_drain_keeps_its_checker() -> None:
    async def run() -> None:
        async with grammars() as process:
            await process.start()
            assert process.process is not None
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(process.process.pid, number)
            assert await process.check(GOOD) is None and process.started == 1

    asyncio.run(run())


def test_where_none_can_be_started_the_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        for program in ("/bin/false", "/no/such/program"):
            monkeypatch.setattr(sys, "executable", program)
            async with grammars() as process:
                with pytest.raises(Unavailable, match="process that checks grammars could not be had"):
                    await process.check(GOOD)

    asyncio.run(run())


OWNER = """
import asyncio, sys
import app
from pontil.runtime.grammar.processes.bounded_process import GrammarProcess
async def run():
    process = GrammarProcess()
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(run())
"""


@pytest.mark.parametrize("busy", [False, True])
def test_it_dies_with_its_owner(busy: bool) -> None:
    """Even while it reads nothing: the kernel kills it."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        if busy:
            child.send_signal(signal.SIGSTOP)
        owner.kill()
    wait_for(lambda: has_ended(child), 30, "the end of the process")


WALK = ROOT / "tests" / "support" / "checks" / "grammar_walk.py"


def grammar_asked_for(asked: HostileRequest) -> str | None:
    """The grammar that the routes build; None if they refuse the request by themselves."""
    try:
        if "tools" in asked:
            fields = Fields({**asked, "parallel_tool_calls": True})
            wanted = tool_fields(fields, read_all(fields, TOOLS))
            calls = [CallText("<a>", json_part(tool.parameters or {}), "</a>") for tool in wanted.tools]
            return grammar_of_calls(calls, CallFrame())
        fields = Fields(asked)
        structure = structure_of(fields, read_all(fields, STRUCTURE))
        return None if structure is None else structure.grammar
    except RequestError:
        return None


def survive_a_worker(seed: int, number: int) -> None:
    """Check that none of `number` mixtures that the process accepts harms a worker, which has at least twice its
    stack."""
    source, taken = random.Random(seed), list[str]()

    async def run() -> None:
        async with grammars() as process:
            for _ in range(number):
                grammar = grammar_asked_for(mixture(source))
                if grammar is not None and await process.check(grammar) is None:
                    taken.append(grammar)

    asyncio.run(run())
    lines = "".join(json.dumps(grammar) + "\n" for grammar in taken)
    ended = subprocess.run(
        [sys.executable, str(WALK)], input=lines, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    done = ended.stdout.count("ok")
    assert taken and (ended.returncode, done) == (0, len(taken)), (
        f"seed {seed}: {taken[done:][:1]} {ended.stderr[-300:]}"
    )


@pytest.mark.long
def test_what_is_let_in_harms_no_worker() -> None:
    survive_a_worker(15, 15)


@pytest.mark.long
def test_nothing_that_is_let_in_harms_a_worker() -> None:
    survive_a_worker(random.randrange(1 << 32), 600)
