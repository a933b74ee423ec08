# SPDX-License-Identifier: Apache-2.0
"""The figures that a launch would have: loads put on a site in virtual time, and what `bench` would print of them."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.client_keys import allowances_of, called, callers_of, of_file
from pontil.launcher.options.kv_tier_list import DISK, MEMORY, TierItem, bytes_of
from pontil.launcher.tools.bench.bench import SHOWN_FAILURES, highest_rate
from pontil.launcher.tools.bench.bench_run import Load, Outcomes
from pontil.launcher.tools.bench.command import questions_of
from pontil.launcher.tools.bench.figures import Figures, Limits, figures_of
from pontil.launcher.tools.bench.stream_client import Timing
from pontil.launcher.tools.planner.forked_calls import ForkedCalls
from pontil.launcher.tools.planner.profile_kinds import of_each
from pontil.launcher.tools.planner.recorded_turns import check_lengths
from pontil.launcher.tools.planner.repeats import typical
from pontil.runtime.config.worker_config import DRAFT_TOKENS
from pontil.runtime.foundation.garbage import leave_to_requests
from pontil.runtime.planner.coarse import WorkerSplit
from pontil.runtime.planner.device_profile import DeviceProfile, ProfileError
from pontil.runtime.planner.planned_site import PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.planned_tiers import TierBlocks
from pontil.runtime.planner.planned_worker import PlannedModel, compute_alone
from pontil.runtime.planner.trial import PlannedLoad, PlannedRequest, PlannedTrial, Tenant, TrialReport
from pontil.runtime.proxy.requests.ticket import NO_KEY, UNLIMITED, Allowance
from pontil.runtime.wire.simulated.thread_events import use_events_for_threads

# A tokenizer of so many tokens has random prompts.
VOCABULARY = 40_000
# Requests of an open loop, unless --requests says how many.
OPEN_LOOP = 200
# Figures of each key.
OF_TENANT = (
    "requests",
    "failures",
    "kept_share",
    "ttft_ms_median",
    "ttft_ms_p99",
    "tpot_ms_median",
    "output_tokens_per_second",
)
# From the seed of a load's chances to those of the next time that it is simulated.
FAR = 1_000_003
HOUR, MILLION = 3600.0, 1e6
NUMBER = re.compile(r"\d+")


def enter_virtual_time() -> None:
    """Have threads be events, and nothing be logged: times of a log would be those of no clock."""
    compute_alone()
    use_events_for_threads()
    leave_to_requests()
    logging.disable(logging.CRITICAL)


class Predictor:
    """Predicts what clients would see of a topology under the loads of a command line, where everything takes
    `slowdown` times as long as measured. It has a model for each of some profiles; the proxy is on a host of the
    first."""

    def __init__(self, profiles: Mapping[str, DeviceProfile], given: dict[str, Any], slowdown: float) -> None:
        enter_virtual_time()
        self.given, self.slowdown, self.calls = given, slowdown, ForkedCalls(given["jobs"])
        self.limits = Limits(given["ttft_limit"], given["tpot_limit"], given["itl_limit"])
        if given["find_rate"] and not self.limits.given:
            raise OptionError("--find-rate goes by limits: give --ttft-limit, --tpot-limit or --itl-limit.")
        check_lengths(given["lengths"])
        self.proxy_options = {name: given[name] for name in ("balance", "ttft_limit", "tpot_limit")}
        self.make_questions = questions_of({**given, "vocabulary": VOCABULARY})
        self.tenants = tenants_of(given["api_keys"])
        self.models = dict[str, PlannedModel]()
        for name, profile in profiles.items():
            try:
                self.models[name] = self.model_of(name, profile)
            except (OptionError, ProfileError) as error:
                raise OptionError(f"--profile {name}: {str(error).rstrip('.')}.") from None
        self.prices = prices_of(given["price"], list(profiles))

    def model_of(self, name: str, profile: DeviceProfile) -> PlannedModel:
        """Return the model of workers of a profile. Raises OptionError or ProfileError."""
        given, drafts = self.given, check_draft(profile, self.given)
        return planned_model(
            with_memory(profile.slower(self.slowdown), given["kv_cache_memory"]),
            cores=given["cores"],
            has_clients=given["clients_here"],
            lend=given["lend_cores"],
            tier_blocks=tiers_of(profile, given["kv_tier"] or ()),
            guesses=given["speculative_tokens"] or (DRAFT_TOKENS if drafts else 0),
            accepted=given["accepted"],
            drafts=drafts,
            kind=name,
        )

    @property
    def model(self) -> PlannedModel:
        """The model of the first profile."""
        return next(iter(self.models.values()))

    def topology(self, workers: WorkerSplit) -> PlannedTopology:
        """Return so many workers of each profile as a topology."""
        by_role, models = (workers.prefill, workers.decode, workers.mixed), list(self.models.values())
        kinds = [model for counts in by_role for model, count in zip(models, counts, strict=True) for _ in range(count)]
        prefill, decode, mixed = map(sum, by_role)
        several = tuple(kinds) if len(models) > 1 else ()
        return PlannedTopology(prefill, decode, mixed, self.given["disagg"], several)

    def cost(self, models: Sequence[PlannedModel]) -> float | None:
        """Return what workers of these models cost in an hour; None without prices."""
        if self.prices is None:
            return None
        return sum(self.prices[model.kind] * model.profile.about.ranks for model in models)

    def rows(self, topology: PlannedTopology) -> list[Figures]:
        """Return the figures of each load; of a search for a rate those of all rates that were tried, and at last what
        it found."""
        rates, trials = self.given["request_rate"] or (), PlannedTrials(self, topology)
        if self.given["find_rate"]:
            return trials.search((rates or (1.0,))[0], self.given["share"])
        loads = [Load(request_rate=rate) for rate in rates]
        return trials.measure(loads or [Load(concurrency=int(streams)) for streams in self.given["concurrency"]])

    def mean_lengths(self) -> tuple[float, float]:
        """Return the tokens of a prompt and of an answer on average."""
        asked = list(islice(self.make_questions(1), OPEN_LOOP))
        return fmean(len(one.prompt) for one in asked), fmean(one.tokens for one in asked)


def at_each_speed(predictors: Sequence[Predictor], some: Sequence[WorkerSplit]) -> list[list[Figures]]:
    """Return the figures of each of some numbers of workers by all predictors. Rows tell the speed if there are
    several."""
    pairs = list(product(some, predictors))
    made = predictors[0].calls.results([partial(one.rows, one.topology(workers)) for workers, one in pairs])
    rows = [
        [row if len(predictors) == 1 else at_speed(row, one.slowdown) for row in found]
        for found, (_, one) in zip(made, pairs, strict=True)
    ]
    count = len(predictors)
    return [list(chain(*rows[place : place + count])) for place in range(0, len(rows), count)]


def at_speed(row: Figures, slowdown: float) -> Figures:
    name = {"load": f"{row['load']}, {slowdown:g} times as slow"} if "load" in row else {}
    return row | name | {"slowdown": slowdown}


def tenants_of(file: Path | None) -> tuple[Tenant, ...]:
    """Return the keys of a file, by name, or one for which there are no limits. Raises OptionError."""
    if file is None:
        return ((NO_KEY, UNLIMITED),)
    lines = called(of_file(file))
    settings = dict(allowances_of(lines))
    return tuple((name, Allowance.of(settings.get(name, ()))) for name, _ in callers_of(lines))


def prices_of(given: Any, names: Sequence[str]) -> dict[str, float] | None:
    """Return the price of a device of each profile for an hour. Raises OptionError where one has none."""
    if given is None:
        return None
    # One price may be that of all.
    each = of_each("price", given, names) if isinstance(given, Mapping) else (given,) * len(names)
    prices = dict(zip(names, each, strict=True))
    if missing := [name for name, price in prices.items() if not price]:
        all_names = ",".join(f"{name}:1" for name in names)
        raise OptionError(f"--price says nothing of {missing[0]}: give the prices of all, like {all_names}.")
    return prices


def check_draft(profile: DeviceProfile, given: dict[str, Any]) -> bool:
    """Return whether a draft model guesses. Raises OptionError for one that the profile was not measured with."""
    wanted, known = given["speculative_model"], profile.draft.model
    if wanted not in (None, known):
        has = f"those of {known}" if known else "none"
        raise OptionError(
            f"--speculative-model {wanted} needs its times, and the profile has {has}: measure them with `pontil "
            f"profile --speculative-model {wanted}`."
        )
    if wanted is not None and not given["accepted"]:
        raise OptionError("--speculative-model needs the chance that a guess is right: give it by --accepted.")
    return wanted is not None


def tiers_of(profile: DeviceProfile, tiers: Sequence[TierItem]) -> TierBlocks:
    """Return the blocks of these tiers. Raises OptionError for a disk that was not measured."""
    made = TierBlocks.of(bytes_of(tiers, MEMORY), bytes_of(tiers, DISK), profile.sizes.block_bytes)
    if made.disk and not profile.disk.read:
        raise OptionError(
            "--kv-tier disk needs the times of a disk, and the profile has none: measure them with `pontil profile "
            "--kv-tier disk:PATH:SIZE`."
        )
    return made


def with_memory(profile: DeviceProfile, size: int | None) -> DeviceProfile:
    """Return a profile whose workers have so many bytes of KV cache. Raises ProfileError."""
    if size is None:
        return profile
    sizes = profile.sizes
    blocks = size // sizes.block_bytes
    longest = min(sizes.max_model_len, (blocks - 1) * sizes.block_tokens)
    if longest < 1:
        raise ProfileError(f"its blocks of KV have {sizes.block_bytes} bytes, and two of them are more than was given")
    return replace(profile, sizes=replace(sizes, blocks=blocks, max_model_len=longest))


class PlannedTrials:
    """The trials of one topology: each sends the requests that `bench` would send in its place."""

    def __init__(self, predictor: Predictor, topology: PlannedTopology) -> None:
        self.predictor, self.topology, self.given = predictor, topology, predictor.given
        self.rows = list[Figures]()

    def search(self, start: float, share: float) -> list[Figures]:
        def keeps_limits(rate: float) -> bool:
            return bool(self.measure([Load(request_rate=rate)])[-1]["kept_share"] >= share)

        rate = highest_rate(start, keeps_limits)
        found = {"server": self.topology.name, "highest_request_rate": rate, "share": share}
        too_many = [row for row in self.rows if row["kept_share"] < share]
        if too_many:
            found |= first_to_break(min(too_many, key=lambda row: float(row["request_rate"])))
        return [*self.rows, found]

    def measure(self, loads: Sequence[Load]) -> list[Figures]:
        """Return the figures of these loads: each the same requests at the same moments, however often it is
        simulated."""
        first, repeats = self.given["seed"] * 100_003 + len(self.rows) + 1, self.given["repeats"]
        made = self.predictor.calls.results([
            partial(self.simulate, load, seed, number)
            for seed, load in enumerate(loads, first) for number in range(repeats)
        ])  # fmt: skip
        rows = [typical(made[place : place + repeats]) for place in range(0, len(made), repeats)]
        self.rows += rows
        return rows

    def simulate(self, load: Load, seed: int, number: int) -> Figures:
        given = self.given
        usual = OPEN_LOOP if load.concurrency is None else given["requests_per_stream"] * load.concurrency
        count = given["requests"] or usual
        questions = ((question.prompt, question.tokens) for question in self.predictor.make_questions(seed))
        tenants = self.predictor.tenants
        planned = PlannedLoad(count, load.concurrency or 1, load.request_rate, seed, given["kill"], tenants)
        chance = seed + number * FAR
        site = PlannedSite(self.topology, self.predictor.model, chance, self.predictor.proxy_options)
        report = PlannedTrial(site, planned, questions).run()
        site.close()
        figures: Figures = {"server": self.topology.name, "load": load.name} | load.fields
        outcomes = outcomes_of(report)
        figures |= figures_of(outcomes, self.predictor.limits)
        figures |= self.kept_by(report) | self.more(report, figures)
        if given["balance"] == "auto":
            figures["role_changes"] = len(site.roles.made)
        if outcomes.failures:
            figures["failure_reasons"] = reasons_of(outcomes.failures)
        return figures | self.by_tenant(report)

    def kept_by(self, report: TrialReport) -> Figures:
        """Return the share of requests that keep each limit, whatever the others."""
        limits, timings = self.predictor.limits, outcomes_of(report).timings
        alone = {"ttft": Limits(ttft=limits.ttft), "tpot": Limits(tpot=limits.tpot), "itl": Limits(itl=limits.itl)}
        kept = {name: sum(map(limit.kept, timings)) for name, limit in alone.items() if limit.given}
        return {"kept_by": {name: round(count / len(report.requests), 4) for name, count in kept.items()}}

    def by_tenant(self, report: TrialReport) -> Figures:
        """Return figures of the requests of each key, where there are any."""
        if self.given["api_keys"] is None:
            return {}
        some = {name: [one for one in report.requests if one.caller == name] for name, _ in self.predictor.tenants}
        made = {
            name: figures_of(outcomes_of(replace(report, requests=own)), self.predictor.limits)
            for name, own in some.items()
        }
        return {"tenants": {name: {one: row[one] for one in OF_TENANT if one in row} for name, row in made.items()}}

    def more(self, report: TrialReport, figures: Figures) -> Figures:
        """Return the figures that only a planner knows."""
        answered = [one for one in report.requests if one.failure is None]
        prompts = sum(one.prompt_tokens for one in answered)
        models = self.topology.models(self.predictor.model)
        made: Figures = {
            "cached_share": round(sum(one.cached_tokens for one in answered) / max(1, prompts), 4),
            "busy": {role: round(share, 3) for role, share in report.busy.items()},
            "kv_share": {role: round(share, 3) for role, share in report.blocks.items()},
            "devices": sum(model.profile.about.ranks for model in models),
            "memory_gib": round(self.memory_bytes(models) / (1 << 30), 2),
            "start_s": max(model.profile.host.start_seconds for model in models),
        }
        if (cost := self.predictor.cost(models)) is not None:
            made["cost_per_hour"] = round(cost, 4)
            if rate := figures.get("output_tokens_per_second"):
                made["cost_per_million_tokens"] = round(cost / HOUR / rate * MILLION, 4)
        return made

    def memory_bytes(self, models: Sequence[PlannedModel]) -> int:
        """Return the bytes of all weights and KV caches, which draft models share."""
        return sum(map(memory_of, models, self.topology.places))


def memory_of(model: PlannedModel, role: str) -> int:
    """Return the bytes of the weights and the KV cache of one worker."""
    profile, sizes = model.profile, model.profile.sizes
    drafting = profile.draft.weight_bytes if model.drafts_in(role) else 0
    return sizes.weight_bytes + profile.about.ranks * sizes.blocks * sizes.block_bytes + drafting


def first_to_break(row: Figures) -> Figures:
    """Return what breaks first as load grows: the limit that the fewest keep, and the role with the most to do."""
    limit = min(row["kept_by"], key=lambda name: float(row["kept_by"][name]))
    role = max(row["busy"], key=lambda name: float(row["busy"][name]))
    return {"breaks_first": limit, "at_request_rate": row["request_rate"], "busiest": role}


def reasons_of(failures: Sequence[str]) -> dict[str, int]:
    """Return the most frequent reasons and how often each was told. Those that differ by numbers only are one, told as
    it was first."""
    told = dict[str, str]()
    counts = Counter(told.setdefault(NUMBER.sub("", one), one) for one in failures)
    return dict(counts.most_common(SHOWN_FAILURES))


def outcomes_of(report: TrialReport) -> Outcomes:
    """Return the outcome of a trial as that of a run of `bench`."""
    failures = [one.failure for one in report.requests if one.failure is not None]
    return Outcomes([timing_of(one) for one in report.requests if one.failure is None], failures, report.seconds)


def timing_of(one: PlannedRequest) -> Timing:
    first, last = one.arrivals[0], one.arrivals[-1]
    gaps = tuple(later - earlier for earlier, later in zip(one.arrivals, one.arrivals[1:], strict=False))
    per_token = (last - first) / max(1, one.tokens - 1)
    return Timing(one.sent, first - one.sent, per_token, last - one.sent, one.prompt_tokens, one.tokens, gaps)
