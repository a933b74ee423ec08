# SPDX-License-Identifier: Apache-2.0
"""A run as a whole: the undisturbed answers, the plan, the faults under load, and the checks."""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pontil.launcher.commands.usage import audit_until_equal, bills_named
from pontil.launcher.control.control_client import RunningLaunch
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.tools.bench.bench_run import open_session
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import RequestFailed, RequestRefused
from pontil.launcher.tools.chaos.chaos_checks import ChaosCheck, ChaosTrial
from pontil.launcher.tools.chaos.chaos_load import ChaosLoad, undisturbed
from pontil.launcher.tools.chaos.disk_fill import small_filesystems
from pontil.launcher.tools.chaos.disturber import Disturber
from pontil.launcher.tools.chaos.fairness import FairnessVerdict, fairness
from pontil.launcher.tools.chaos.fairness_probe import FairnessProbe
from pontil.launcher.tools.chaos.fault_plan import (
    FILL,
    GREED,
    PROXY,
    ChaosTarget,
    PlanFacts,
    PlannedFault,
    left_out,
    plan_faults,
)
from pontil.launcher.tools.chaos.greedy_caller import GreedyCaller, limits_of
from pontil.launcher.tools.chaos.launch_facts import LaunchFacts, facts_of
from pontil.launcher.tools.chaos.launch_rest import RestWatch
from pontil.launcher.tools.chaos.pause_table import PauseRow, pause_rows
from pontil.launcher.tools.chaos.prompts import PROMPTS

# Longest silence of a stream, in seconds, before it counts as lost.
SILENCE_TIMEOUT = 180.0
PROGRESS_EVERY = 1.0
MODELS = "/v1/models"
# The second caller, as a plan names it.
SECOND_CALLER = "a second caller"

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """The options of a run."""

    url: str
    model: str
    minutes: float
    faults: tuple[str, ...]
    streams: int
    seed: int
    key: dict[str, str] = field(default_factory=dict, repr=False)
    greedy_key: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class ChaosReport:
    """The outcome of a run."""

    seed: int
    plan: list[PlannedFault]
    left_out: dict[str, str]
    seconds: float = 0.0
    checks: list[ChaosCheck] = field(default_factory=list)
    pauses: list[PauseRow] = field(default_factory=list)
    fairness: FairnessVerdict | None = None

    @property
    def held(self) -> bool:
        return bool(self.checks) and all(check.held for check in self.checks)

    @property
    def verdict(self) -> str:
        return "held" if self.held else "broke"

    @property
    def json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


class ChaosRun:
    """One run against one launch. `show` takes each line for people as soon as it is known."""

    def __init__(self, launch: RunningLaunch, settings: ChaosSettings, show: Show) -> None:
        self.launch, self.settings, self.show = launch, settings, show
        self.salt = f"chaos {secrets.token_hex(4)}"

    async def run(self) -> ChaosReport:
        """Raises OptionError, and LaunchError where nothing can be told."""
        try:
            async with self.client() as client:
                return await self.watched_by(client)
        except RequestFailed as error:
            raise LaunchError(f"The server at {self.settings.url} did not answer: {error}") from None

    @asynccontextmanager
    async def client(self, keeps_alive: bool = True, key: Mapping[str, str] | None = None) -> AsyncIterator[HttpClient]:
        """A client with connections of its own. Those of the load are closed before descriptors are counted."""
        async with open_session(SILENCE_TIMEOUT, keeps_alive) as session:
            yield HttpClient(session, self.settings.url, self.settings.key if key is None else key)

    async def watched_by(self, client: HttpClient) -> ChaosReport:
        settings, folder = self.settings, self.launch.directory
        facts = await facts_of(folder)
        report = self.planned(facts, await self.has_second_caller())
        resumes = any(fault.role == PROXY for fault in report.plan)
        assert self.launch.pid is not None
        watch = RestWatch(folder, client, self.launch.pid)
        async with self.client() as asking:
            expected_answers = await undisturbed(asking, PROMPTS, settings.model, self.salt, resumes)
        for name, reason in expected_answers.refused.items():
            report.left_out[f"prompt {name}"] = reason
            self.show(f"left out: {name}: {reason}")
        before = await watch.at_rest()
        since = (await facts_of(folder)).now
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            # A proxy that is back has streams only if they make connections of their own.
            asking = await stack.enter_async_context(self.client(keeps_alive=not resumes))
            load = ChaosLoad(asking, settings.model, PROMPTS, expected_answers.answers, self.salt, resumes)
            greedy, probe = None, None
            if any(fault.variant == GREED for fault in report.plan):
                spending = await stack.enter_async_context(self.client(not resumes, settings.greedy_key))
                greedy = await self.greedy_caller(spending, watch)
                probe = FairnessProbe(asking, settings.model, self.salt, load.over)
            disturber = Disturber(folder, watch.effects, since, greedy)
            await self.under_load(load, disturber, report.plan, probe)
        report.seconds = time.monotonic() - began
        after = await watch.at_rest()
        findings, bills = await self.findings(facts, load.names)
        await disturber.collect_exits()
        exits, planned_count = disturber.exits, len(report.plan)
        report.fairness = None if probe is None else fairness(probe.records, disturber.records)
        report.checks = ChaosTrial(
            before, after, load.records, exits, disturber.records, planned_count, findings, bills, report.fairness
        ).checks
        report.pauses = pause_rows(load.records, disturber.records)
        return report

    async def has_second_caller(self) -> bool:
        """Return whether the server tells two callers apart, and the key of a second one is known. Raises OptionError
        for one that it does not take."""
        if not self.settings.greedy_key:
            return False
        try:
            async with self.client(key=self.settings.greedy_key) as client:
                await client.get(MODELS)
        except RequestRefused as error:
            raise OptionError(f"The server does not take the key of --greedy-key: {error}") from None
        try:
            async with self.client(key={}) as client:
                await client.get(MODELS)
        except RequestRefused:
            return True
        return False

    async def greedy_caller(self, client: HttpClient, watch: RestWatch) -> GreedyCaller:
        models = json.loads(await client.get(MODELS))["data"]
        limits = limits_of(await watch.processes(), models, self.settings.model)
        return GreedyCaller(client, self.settings.model, limits, self.salt)

    def planned(self, facts: LaunchFacts, is_shared: bool) -> ChaosReport:
        """Make the plan and show it. Raises OptionError if nothing is possible."""
        settings = self.settings
        first = next((child.group for child in facts.children if child.role in GENERATING_ROLES), "")
        workers = tuple(
            ChaosTarget(child.name, child.role, child.ranks)
            for child in facts.children
            if child.role in GENERATING_ROLES and child.group == first
        )
        if len(workers) < 2:
            raise OptionError(
                f"This launch has {len(workers)} workers that generate, and chaos needs two: nobody would serve while "
                "one is disturbed. Of several launches name the one with the workers, by --pid."
            )
        folders, reasons = small_filesystems(facts.folders)
        limits = PlanFacts(
            facts.silence,
            facts.restart_attempts,
            facts.restart_window,
            workers,
            tuple(folders),
            proxies_of(facts),
            (SECOND_CALLER,) if is_shared else (),
        )
        missing = left_out(settings.faults, limits)
        if FILL in missing and reasons:
            missing[FILL] += f" ({'; '.join(reasons)})"
        plan = plan_faults(settings.seed, settings.minutes, settings.faults, limits)
        if not plan:
            raise OptionError(f"No fault is possible here: {'; '.join(missing.values())}")
        self.show(f"seed {settings.seed}: {len(plan)} faults, under {settings.streams} streams")
        for fault in plan:
            self.show(fault.describe())
        for name, reason in missing.items():
            self.show(f"left out: {name}: {reason}")
        return ChaosReport(settings.seed, plan, dict(missing))

    async def under_load(
        self, load: ChaosLoad, disturber: Disturber, plan: Sequence[PlannedFault], probe: FairnessProbe | None
    ) -> None:
        """Run the load for as long as the plan and the minutes last."""
        began = time.monotonic()
        streams = asyncio.create_task(self.ask_all(load, probe))
        progress = asyncio.create_task(self.progress(load, disturber, began))
        try:
            await disturber.run(plan, began)
            await asyncio.sleep(max(0.0, began + 60 * self.settings.minutes - time.monotonic()))
            load.over.set()
            await streams
        finally:
            progress.cancel()
            streams.cancel()

    async def ask_all(self, load: ChaosLoad, probe: FairnessProbe | None) -> None:
        """Send everything that is judged, until the load is over."""
        await asyncio.gather(load.run(self.settings.streams), *(() if probe is None else (probe.run(),)))

    async def progress(self, load: ChaosLoad, disturber: Disturber, began: float) -> None:
        """Show one line again and again, where a terminal is there."""
        while sys.stderr.isatty():
            now = ", ".join(f"{fault.variant} {fault.target}" for fault in disturber.under_way) or "no fault"
            status = f"{time.monotonic() - began:.0f} s, {len(load.records)} answers, {load.failures} failed, {now}"
            sys.stderr.write(f"\r\x1b[K{status}")
            sys.stderr.flush()
            try:
                await asyncio.sleep(PROGRESS_EVERY)
            finally:
                sys.stderr.write("\r\x1b[K")

    async def findings(
        self, facts: LaunchFacts, names: str
    ) -> tuple[list[tuple[bool, str]] | None, list[dict[str, Any]] | None]:
        """Audit the usage log, if the launch has one, and read the rows of the load, whose names begin so."""
        if facts.usage_log is None:
            return None, None
        log, url = Path(facts.usage_log), None if len(proxies_of(facts)) > 1 else self.settings.url
        comparisons = await asyncio.to_thread(audit_until_equal, log, url, self.settings.key)
        return comparisons, await asyncio.to_thread(bills_named, log, names)


def proxies_of(facts: LaunchFacts) -> tuple[ChaosTarget, ...]:
    return tuple(ChaosTarget(child.name, PROXY) for child in facts.children if child.role == PROXY)
