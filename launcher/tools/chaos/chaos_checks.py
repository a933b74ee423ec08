# SPDX-License-Identifier: Apache-2.0
"""The checks after the faults, as pure functions of what was seen before, meanwhile and afterwards."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pontil.launcher.tools.chaos.chaos_load import AnswerOutcome, AnswerRecord
from pontil.launcher.tools.chaos.disturber import FaultRecord
from pontil.launcher.tools.chaos.fairness import FairnessVerdict
from pontil.launcher.tools.chaos.fault_plan import GREED, PROXY
from pontil.launcher.tools.chaos.launch_facts import ExitFacts
from pontil.launcher.tools.chaos.launch_rest import LaunchRest

# More descriptors than before that a process may hold: connections that are just closing.
MORE_DESCRIPTORS = 8
# Growth of a process's own memory that counts as none: a share of it, and bytes. Allocators keep what they once had.
MEMORY_SHARE, MEMORY_BYTES = 0.25, 64 << 20
SHOWN = 5
# Seconds after a fault in which its process's end still counts as its own.
AFTERMATH = 2.0


@dataclass(frozen=True, slots=True)
class ChaosCheck:
    """One check: whether it held, and what was seen, with further lines of a process that ended."""

    name: str
    held: bool
    seen: str
    lines: tuple[str, ...] = ()


def is_cut(record: AnswerRecord, faults: Sequence[FaultRecord]) -> bool:
    """Return whether a connection broke because a fault ended its proxy, and there was nothing to continue."""
    return record.broke and any(
        fault.took_place
        and not fault.survived
        and fault.planned.role == PROXY
        and fault.begun <= record.ended <= max(fault.ended, fault.recovered) + AFTERMATH
        for fault in faults
    )


def judged(records: Sequence[AnswerRecord], faults: Sequence[FaultRecord]) -> list[AnswerRecord]:
    """Return the records, with what was cut off with its proxy told apart from what was lost."""
    return [replace(record, outcome=AnswerOutcome.CUT) if is_cut(record, faults) else record for record in records]


def answers_check(records: Sequence[AnswerRecord]) -> ChaosCheck:
    counts = Counter(record.outcome for record in records)
    bad = [record for record in records if record.outcome.is_failure]
    summary = f"{counts[AnswerOutcome.SAME]} answers are those of the undisturbed launch"
    if break_counts := [record.continued for record in records if record.continued]:
        summary += f", {len(break_counts)} of them continued after a break ({sum(break_counts)} breaks)"
    if counts[AnswerOutcome.CUT]:
        headless = sum(record.headless for record in records if record.outcome is AnswerOutcome.CUT)
        summary += f", {counts[AnswerOutcome.CUT]} requests with nothing to continue were cut off with their proxy"
        summary += f" ({headless} of them streams before their heads)"
    if counts[AnswerOutcome.REFUSED]:
        summary += f", {counts[AnswerOutcome.REFUSED]} requests were refused before their first byte"
    if bad:
        summary += f", {counts[AnswerOutcome.CHANGED]} are changed and {counts[AnswerOutcome.LOST]} lost"
    lines = tuple(f"{record.prompt}: {record.outcome.value}: {record.detail}" for record in bad[:SHOWN])
    return ChaosCheck("answers", not bad and counts[AnswerOutcome.SAME] > 0, summary, lines)


def ledger_checks(
    before: LaunchRest,
    after: LaunchRest,
    records: Sequence[AnswerRecord],
    bills: Sequence[Mapping[str, Any]] | None,
    is_alone: bool,
) -> Iterator[ChaosCheck]:
    """Compare the usage of replies with the ledger's growth, or, unless the load was alone, with a row for each."""
    yield ChaosCheck("ledger", after.imbalance == 0, f"imbalance {after.imbalance:g}")
    if before.ledger is None or after.ledger is None:
        yield bills_check(records, bills)
        return
    yield sums_check(before.ledger, after.ledger, records) if is_alone else bills_check(records, bills)
    open_requests = after.ledger["open"]
    yield ChaosCheck("open requests", open_requests == 0, f"{open_requests} are open")


def sums_check(before: Mapping[str, Any], after: Mapping[str, Any], records: Sequence[AnswerRecord]) -> ChaosCheck:
    apart = []
    replies = [record for record in records if record.completion_tokens]
    for name in ("prompt_tokens", "completion_tokens"):
        reply_tokens = sum(getattr(record, name) for record in replies)
        grown = after[name] - before[name]
        if reply_tokens != grown:
            apart.append(f"replies say {reply_tokens} {name.replace('_', ' ')} and the ledger {grown}")
    tokens = sum(record.completion_tokens for record in replies)
    exact = f"{len(replies)} replies and the ledger agree on every token ({tokens} generated)"
    # A stream that was lost may have been billed, and no reply tells.
    lost = " (some answers were lost, and with them their usage)" if any(r.outcome.is_failure for r in records) else ""
    return ChaosCheck("usage", not apart, "; ".join(apart) + lost if apart else exact)


def bills_check(records: Sequence[AnswerRecord], bills: Sequence[Mapping[str, Any]] | None) -> ChaosCheck:
    """Compare each answer with its row in the usage log, where several proxies have a ledger each, or a greedy caller's
    requests are in it too."""
    if bills is None:
        summary = "not compared: several proxies, each with a ledger of its own, or several callers, and no --usage-log"
        return ChaosCheck("usage", True, summary)
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for bill in bills:
        rows.setdefault(bill["name"], []).append(bill)
    replies = [record for record in records if record.completion_tokens]
    apart = [f"{record.name} {says}" for record in replies if (says := misbilled(record, rows.get(record.name, [])))]
    tokens = sum(record.completion_tokens for record in replies)
    exact = f"{len(replies)} replies have one row each, which agrees on every token ({tokens} generated)"
    summary = f"{len(apart)} of {len(replies)} replies are not billed as they were answered" if apart else exact
    return ChaosCheck("usage", not apart, summary, tuple(apart[:SHOWN]))


def misbilled(record: AnswerRecord, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how the rows of an answer differ from the one that it should have, None if they do not."""
    if len(rows) != 1:
        return f"has {len(rows)} rows"
    (row,) = rows
    if row["state"] != "closed":
        return f"has a row that is {row['state']}"
    reply, bill = (record.prompt_tokens, record.completion_tokens), (row["prompt_tokens"], row["completion_tokens"])
    return None if reply == bill else f"says {reply[0]} and {reply[1]} tokens, and its row {bill[0]} and {bill[1]}"


def blocks_check(before: LaunchRest, after: LaunchRest) -> ChaosCheck:
    """Compare the blocks in use, not the free ones: a worker that starts again may have a cache of another size."""
    apart = [
        f"{name} has {after.used_blocks.get(name)} KV blocks in use and had {count}"
        for name, count in before.used_blocks.items()
        if after.used_blocks.get(name) != count
    ]
    return ChaosCheck(
        "blocks", not apart, "; ".join(apart) or f"as many are in use as before, in {len(before.used_blocks)} workers"
    )


def resource_checks(before: LaunchRest, after: LaunchRest) -> Iterator[ChaosCheck]:
    """Compare the descriptors of every child, and the memory of the processes that live from before to after."""
    then, now = descriptors_of(before), descriptors_of(after)
    extra = {name: now.get(name, 0) - count for name, count in then.items()}
    apart = [f"{name} has {count} more" for name, count in sorted(extra.items()) if count > MORE_DESCRIPTORS]
    most = max(0, *extra.values(), 0)
    yield ChaosCheck(
        "descriptors", not apart, "; ".join(apart) or f"at most {most} more in any of {len(extra)} children"
    )
    kept_processes = sorted(before.holdings.keys() & after.holdings.keys())
    grown = {key: after.holdings[key].own_bytes - before.holdings[key].own_bytes for key in kept_processes}
    apart = [
        f"{key[0]} has {grown[key] >> 20} MiB more of its own"
        for key in kept_processes
        if grown[key] > before.holdings[key].own_bytes * MEMORY_SHARE + MEMORY_BYTES
    ]
    most = max(0, *grown.values(), 0) >> 20
    summary = f"at most {most} MiB more in any of {len(kept_processes)} processes that were not replaced"
    yield ChaosCheck("memory", not apart, "; ".join(apart) or summary)


def descriptors_of(rest: LaunchRest) -> dict[str, int]:
    """Return the descriptors of each child, over its ranks."""
    sums: dict[str, int] = {}
    for (name, _), holding in rest.holdings.items():
        sums[name] = sums.get(name, 0) + holding.descriptors
    return sums


def leftover_check(before: LaunchRest, after: LaunchRest) -> ChaosCheck:
    segments = sorted(after.segments - before.segments)
    leftovers = [f"segment {name}" for name in segments] + [f"zombie {pid}" for pid in after.zombies]
    return ChaosCheck(
        "leftovers", not leftovers, ", ".join(leftovers[:SHOWN]) or "no zombie, no shared memory of the dead"
    )


def faults_check(before: LaunchRest, after: LaunchRest) -> ChaosCheck:
    grown = {name: after.faults[name] - before.faults[name] for name in before.faults}
    apart = [f"{name} grew by {count:g}" for name, count in grown.items() if count > 0]
    return ChaosCheck(
        "own faults", not apart, "; ".join(apart) or "no thread failed, no count was disputed, no row lost"
    )


def explained_by(exit_facts: ExitFacts, faults: Sequence[FaultRecord]) -> FaultRecord | None:
    """Return the fault that an exit is the consequence of: one of the same process, which killed it, or stopped or
    slowed it until the supervisor did."""
    for fault in faults:
        latest_end = max(fault.ended, fault.begun) + AFTERMATH
        same = (
            fault.took_place and fault.planned.target == exit_facts.name and fault.begun <= exit_facts.at <= latest_end
        )
        if same and (
            fault.planned.fault == "kill" or (fault.planned.fault in ("stop", "slow") and exit_facts.cause == "sick")
        ):
            return fault
    return None


def deaths_check(exits: Sequence[ExitFacts], faults: Sequence[FaultRecord]) -> ChaosCheck:
    """Compare the exits with the faults that kill: each of those has one exit, and there are no others."""
    problems, by_kill, by_silence = list[str](), 0, 0
    lines, open_faults = list[str](), list(faults)
    for exit_facts in exits:
        fault = explained_by(exit_facts, open_faults)
        if fault is None:
            problems.append(f"{exit_facts.name} {exit_facts.reason}, and nobody had it killed")
            lines += [f"{exit_facts.name} | {line}" for line in exit_facts.lines]
            continue
        open_faults.remove(fault)
        by_kill += fault.planned.fault == "kill"
        by_silence += fault.planned.fault != "kill"
    due = [fault for fault in open_faults if fault.took_place and not fault.survived]
    problems += [f"{fault.planned.target} was to die by {fault.planned.variant} and has no exit" for fault in due]
    summary = f"{by_kill} by kills, {by_silence} by the supervisor after a stop, no others"
    return ChaosCheck("deaths", not problems, "; ".join(problems) or summary, tuple(lines))


def trial_check(faults: Sequence[FaultRecord], planned_count: int) -> ChaosCheck:
    """Compare the faults that took place with the plan."""
    count = sum(fault.took_place for fault in faults)
    problems = [fault.problem for fault in faults if fault.problem]
    problems += (
        [f"{planned_count - count - len(problems)} faults were not reached"]
        if planned_count - count > len(problems)
        else []
    )
    return ChaosCheck("faults", not problems, "; ".join(problems) or f"{count} took place")


def audit_check(findings: Sequence[tuple[bool, str]] | None) -> ChaosCheck:
    if findings is None:
        return ChaosCheck("audit", True, "no --usage-log to audit")
    apart = tuple(text for equal, text in findings if not equal)
    summary = f"{len(apart)} of {len(findings)} comparisons of the usage log differ"
    return ChaosCheck("audit", bool(findings) and not apart, summary, apart[:SHOWN])


def fairness_checks(verdict: FairnessVerdict | None) -> Iterator[ChaosCheck]:
    if verdict is not None:
        yield ChaosCheck("fairness", verdict.held, verdict.describe(), verdict.problems[:SHOWN])


@dataclass(frozen=True, slots=True)
class ChaosTrial:
    """The observations of a run: the launch at rest `before` and `after` it, answers, exits, and those of the `planned`
    faults that were reached. `findings` are those of an audit and `bills` rows of the usage log, where there is one;
    `verdict` is that on fairness, if another caller was greedy."""

    before: LaunchRest
    after: LaunchRest
    records: Sequence[AnswerRecord]
    exits: Sequence[ExitFacts]
    faults: Sequence[FaultRecord]
    planned: int
    findings: Sequence[tuple[bool, str]] | None = None
    bills: Sequence[Mapping[str, Any]] | None = None
    verdict: FairnessVerdict | None = None

    @property
    def checks(self) -> list[ChaosCheck]:
        before, after, faults, judged_records = self.before, self.after, self.faults, judged(self.records, self.faults)
        alone = all(fault.planned.variant != GREED for fault in faults)
        return [
            trial_check(faults, self.planned),
            answers_check(judged_records),
            *fairness_checks(self.verdict),
            *ledger_checks(before, after, judged_records, self.bills, alone),
            audit_check(self.findings),
            deaths_check(self.exits, faults),
            blocks_check(before, after),
            *resource_checks(before, after),
            leftover_check(before, after),
            faults_check(before, after),
        ]
