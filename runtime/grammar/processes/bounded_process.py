# SPDX-License-Identifier: Apache-2.0
"""The owner of a child process that works on clients' texts (`bounded_child.py`): starts it, asks it, ends it. One
kind compiles grammars (`compile_child.py`), one checks answers (`check_child.py`), one decodes media
(`runtime/stages/media/child.py`)."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.grammar.processes.bounded_child import LENGTH_BYTES, ChildLimits, framed
from pontil.runtime.grammar.processes.compile_child import GRAMMAR, SCHEMA, RelaxedSchema
from pontil.runtime.grammar.processes.verdict import SchemaState, Verdict

LOG = logging.getLogger("pontil.grammars")
# A machine that has just booted, or is full, may take long to start a process.
START_TIMEOUT = 30.0
# Finds the package as app.py does, in a checkout and in an installation. Nothing is imported from the working
# directory.
PROGRAM = """
import importlib, sys, types
sys.path[:] = [folder for folder in sys.path if folder]
package = types.ModuleType("pontil")
package.__path__ = [sys.argv[2]]
sys.modules["pontil"] = package
importlib.import_module(sys.argv[3]).main(sys.argv[4:])
"""
FOLDER = str(Path(__file__).resolve().parents[3])


class BoundedProcess:
    """Started by the first question, and again by the next one after its end. One question at a time; used and closed
    by one event loop, whose thread must outlive the process. `module` has the child's `main`, `name` shows in lists of
    processes. No answer has more than `most_reply` bytes."""

    name: str
    module: str
    # The work, as log lines and messages call it.
    work: str
    most_reply = 1 << 20

    def __init__(self, limits: ChildLimits, timeout: float) -> None:
        self.limits, self.timeout = limits, timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        # Processes that were started, and those that a question crashed.
        self.started = self.crashed = 0

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def broken(self) -> str:
        return f"the process that {self.work} could not be had: try again"

    async def ask(self, question: str) -> str | None:
        """Return the answer, None if the question ended the process. Raises asyncio.TimeoutError, and Unavailable
        without a process to ask. Whenever the wait for an answer ends early, the process is ended too, so that a late
        one cannot answer the next question."""
        is_answered = False
        try:
            await self.start()
            answer = await self.answer(question)
            is_answered = True
            return answer
        finally:
            if not is_answered:
                self.end()

    async def answer(self, question: str) -> str | None:
        assert self.writer is not None
        self.writer.write(framed(question))
        try:
            return await asyncio.wait_for(self.reply(), self.timeout)
        except asyncio.TimeoutError:  # an OSError too, from Python 3.11 on
            raise
        except (asyncio.IncompleteReadError, OSError):
            self.blame()
            return None

    def blame(self) -> None:
        """Blame the question for the end of the process, unless it was killed: that raises Unavailable."""
        code = self.end()
        if code == -signal.SIGKILL:
            LOG.warning("the process that %s was killed", self.work)
            raise Unavailable(self.broken) from None
        self.crashed += 1
        says = "a client's text ended the process that %s (code %s): it is refused, and the next starts another"
        LOG.warning(says, self.work, code)

    async def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.end()
        mine, theirs = socket.socketpair()
        command = [sys.executable, "-c", PROGRAM, self.name, FOLDER, self.module, str(os.getpid()), *self.limits.words]
        try:
            self.process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        except OSError as error:
            mine.close()
            LOG.error("the process that %s cannot be started: %s", self.work, error)
            raise Unavailable(self.broken) from None
        finally:
            theirs.close()
        self.started += 1
        self.reader, self.writer = await asyncio.open_unix_connection(sock=mine)
        try:
            await asyncio.wait_for(self.reply(), START_TIMEOUT)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            LOG.error("the process that %s did not start: code %s", self.work, self.end())
            raise Unavailable(self.broken) from None

    async def reply(self) -> str:
        assert self.reader is not None
        size = int.from_bytes(await self.reader.readexactly(LENGTH_BYTES), "big")
        if size > self.most_reply:
            raise OSError(f"a reply of {size} bytes")
        return (await self.reader.readexactly(size)).decode()

    def end(self) -> int | None:
        """End the process at once; return its exit code, if there was a process. One that has died keeps the code it
        died with."""
        if self.writer is not None:
            self.writer.transport.abort()
        process, self.process, self.reader, self.writer = self.process, None, None, None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.kill()
        return process.wait()


COMPILE_TIMEOUT = 10.0
TOO_COMPLEX = "the grammar could not be compiled: it is too complex, ask for something simpler"


class GrammarProcess(BoundedProcess):
    """The process in which grammars are compiled before a worker gets them. An answer is final: the same question
    always gets the same one."""

    name, module, work = "grammars", "pontil.runtime.grammar.processes.compile_child", "checks grammars"

    def __init__(self, limits: ChildLimits | None = None, timeout: float = COMPILE_TIMEOUT) -> None:
        super().__init__(limits or ChildLimits(), timeout)

    async def check(self, grammar: str) -> str | None:
        """Return the reason why the grammar cannot be used, None if it can. Raises RequestError on timeout, and
        Unavailable without a process to ask."""
        answer = await self.find(GRAMMAR + grammar)
        return TOO_COMPLEX if answer is None else answer or None

    async def relax(self, schema: str) -> RelaxedSchema | str:
        """Return what a grammar holds of a JSON schema, given as JSON, or the reason why nothing is possible. Raises
        like `check`."""
        answer = await self.find(SCHEMA + schema)
        if answer is None:
            return TOO_COMPLEX
        answer_fields = json.loads(answer)
        return str(answer_fields["reason"]) if "reason" in answer_fields else RelaxedSchema(**answer_fields)

    async def find(self, question: str) -> str | None:
        try:
            return await self.ask(question)
        except asyncio.TimeoutError:
            says = f"it takes more than {self.timeout:g} s to compile: ask for something simpler"
            raise RequestError(says) from None


CHECK_TIMEOUT = 3.0
# Of the processor.
CHECK_SECONDS = 1


class AnswerCheckProcess(BoundedProcess):
    """The process in which answers are checked, each within a second of the processor."""

    name, module, work = "answers", "pontil.runtime.grammar.processes.check_child", "checks answers"

    def __init__(self, timeout: float = CHECK_TIMEOUT) -> None:
        super().__init__(ChildLimits(cpu_seconds=CHECK_SECONDS), timeout)

    async def verdict(self, schema: str, text: str) -> Verdict | None:
        """Return whether the answer follows the schema, given as JSON; None if the check took too much of anything."""
        try:
            answer = await self.ask(json.dumps([schema, text]))
        except asyncio.TimeoutError:
            return None
        except Unavailable as error:
            return Verdict.not_checked(str(error))
        if answer is None:
            return None
        state, reason = json.loads(answer)
        return Verdict(SchemaState(state), reason)
