# SPDX-License-Identifier: Apache-2.0
"""Requests become the steps of a change, or a sentence: never a traceback, whatever the request contains."""

from dataclasses import replace
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import HostDevices, Placement
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks
from pontil.launcher.supervisor.rollouts.plan import LaunchSnapshot, planned
from pontil.launcher.supervisor.rollouts.rollout_step import RolloutGoal, RolloutLimits, WorkerSnapshot

READY, GIVEN_UP = ChildState.READY, ChildState.GIVEN_UP

LIMITS = RolloutLimits(30.0, 600.0)


def snapshot(*names: str, cores: int = 8, proxies: int = 1, **duties: DrainState) -> LaunchSnapshot:
    workers = []
    for number, name in enumerate(names):
        role, config = name.partition(":")[0], {"peer_endpoint": "ipc:///run/x"}
        plan = ChildPlan(name, role, "cpu", (number,), config)
        workers.append((plan, WorkerSnapshot(name, READY, duties.get(name.replace(":", ""), DrainState.WORKING))))
    return LaunchSnapshot(workers, HostDevices(tuple(range(cores)), cores, 0), LIMITS, False, names_of(proxies))


def names_of(proxies: int) -> list[str]:
    return [f"proxy:{number}" for number in range(proxies)]


PAIR = snapshot("prefill:0", "decode:0")


def steps(request: dict[str, Any], where: LaunchSnapshot = PAIR) -> list[tuple[RolloutGoal, str]]:
    return [(step.aim, step.name) for step in planned(request, where).steps]


def test_names_are_done_in_their_order_and_once() -> None:
    many = snapshot("decode:0", "decode:1", "decode:2")
    request = {"command": "drain", "names": ["decode:2", "decode:0", "decode:2"], "drain_timeout": 3}
    assert steps(request, many) == [(RolloutGoal.DRAINED, "decode:2"), (RolloutGoal.DRAINED, "decode:0")]
    assert planned(request, many).limits.drain == 3.0


def test_a_restart_of_all_leaves_the_drained_drained_and_a_named_one_does_not() -> None:
    where = snapshot("prefill:0", "decode:0", "decode:1", decode1=DrainState.DRAINED)
    rest = {step.name: step.rests for step in planned({"command": "restart", "all": True}, where).steps}
    assert rest == {"prefill:0": False, "decode:0": False, "decode:1": True}
    (step,) = planned({"command": "restart", "names": ["decode:1"]}, where).steps
    assert not step.rests


def test_the_highest_numbers_go_and_the_first_free_ones_come() -> None:
    many = snapshot("decode:2", "decode:10", "decode:0", "prefill:0")
    assert steps({"command": "scale", "counts": {"decode": 1}}, many) == [
        (RolloutGoal.GONE, "decode:10"),
        (RolloutGoal.GONE, "decode:2"),
    ]
    assert steps({"command": "scale", "counts": {"decode": 5}}, many) == [
        (RolloutGoal.THERE, "decode:1"), (RolloutGoal.THERE, "decode:3"),
    ]  # fmt: skip


def test_a_worker_that_went_in_another_role_can_come_back() -> None:
    """The number of the launch's first worker is free then, and new ones begin with it."""
    pair = snapshot("prefill:0", "prefill:1", "decode:0", "decode:1")
    workers = [(replace(plan, role="decode") if plan.name == "prefill:0" else plan, at) for plan, at in pair.workers]
    fewer = steps({"command": "scale", "counts": {"decode": 1}}, replace(pair, workers=workers))
    assert fewer == [(RolloutGoal.GONE, "decode:1"), (RolloutGoal.GONE, "prefill:0")]
    back = {"command": "scale", "counts": {"prefill": 2}}
    left = snapshot("prefill:1", "decode:0")
    assert steps(back, left) == [(RolloutGoal.THERE, "prefill:0")]
    joined = replace(snapshot("prefill:8", "decode:7"), first_number=7)
    assert steps(back, joined) == [(RolloutGoal.THERE, "prefill:7")]


def test_who_goes_leaves_its_cores_to_who_comes() -> None:
    full = snapshot("prefill:0", "prefill:1", "decode:0", cores=3)
    change = planned({"command": "scale", "counts": {"prefill": 1, "decode": 2}}, full)
    gone, there = change.steps
    assert (gone.aim, gone.name, there.aim, there.name) == (
        RolloutGoal.GONE,
        "prefill:1",
        RolloutGoal.THERE,
        "decode:1",
    )
    assert there.plan is not None and there.plan.cores == (1,)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"command": "drain", "names": ["prefill:0", "decode:0"]}, "Nobody else would serve"),
        ({"command": "scale", "counts": {"prefill": 0, "decode": 0}}, "Nobody else would serve"),
        ({"command": "scale", "counts": {"decode": 9}}, "Nothing is free for another decode worker"),
        (
            {"command": "drain", "names": ["decode:7"]},
            "There is no worker 'decode:7': this launch has prefill:0, decode:0",
        ),
        ({"command": "drain"}, "Name a worker"),
        ({"command": "drain", "names": ["decode:0"], "drain_timeout": -1}, "--drain-timeout"),
        ({"command": "scale", "counts": {"decode": "x"}}, "--decode must be a whole number"),
        ({"command": "scale", "counts": {"proxy": 2}}, "role is one of"),
        ({"command": "scale"}, "Say how many"),
        ({"command": "role", "names": ["decode:0"], "role": "cook"}, "role is one of"),
    ],
)
def test_what_cannot_be_is_said(request_: dict[str, Any], words: str) -> None:
    with pytest.raises((LaunchError, OptionError), match=words):
        planned(request_, PAIR)


def test_the_only_one_that_serves_is_restarted_by_force_only() -> None:
    alone = snapshot("prefill:0", "decode:0", prefill0=DrainState.DRAINED)
    with pytest.raises(LaunchError, match="Nobody else would serve but decode:0"):
        planned({"command": "restart", "names": ["decode:0"]}, alone)
    assert planned({"command": "restart", "names": ["decode:0"], "force": True}, alone).minimum == 0
    assert steps({"command": "restart", "names": ["prefill:0"]}, alone) == [(RolloutGoal.RENEWED, "prefill:0")]


def test_each_model_keeps_a_worker() -> None:
    three = snapshot("prefill:0", "decode:0", "embed:0")
    with pytest.raises(LaunchError, match="Nobody else would serve but embed:0"):
        planned({"command": "drain", "names": ["embed:0"]}, three)
    with pytest.raises(LaunchError, match="Nobody else would serve but decode:0, prefill:0"):
        planned({"command": "drain", "names": ["decode:0", "prefill:0"]}, three)
    assert steps({"command": "drain", "names": ["decode:0"]}, three) == [(RolloutGoal.DRAINED, "decode:0")]


def test_no_more_workers_are_added_than_the_memory_of_models_holds() -> None:
    limited = replace(snapshot("prefill:0", "decode:0", "decode:1", "embed:0"), most_workers={"": 3})
    with pytest.raises(LaunchError, match="no room for decode:2 in --model-memory, even while all other models sleep"):
        planned({"command": "scale", "counts": {"decode": 3}}, limited)
    assert steps({"command": "scale", "counts": {"decode": 1}}, limited) == [(RolloutGoal.GONE, "decode:1")]
    changed = [(RolloutGoal.GONE, "prefill:0"), (RolloutGoal.THERE, "decode:2")]
    assert steps({"command": "scale", "counts": {"prefill": 0, "decode": 3}}, limited) == changed
    assert steps({"command": "scale", "counts": {"embed": 2}}, limited) == [(RolloutGoal.THERE, "embed:1")]


def staged(*workers: tuple[str, str, str]) -> LaunchSnapshot:
    plans = [
        ChildPlan(name, role, "cpu", (number,), {"peer_endpoint": "ipc:///run/x", "node": node})
        for number, (name, role, node) in enumerate(workers)
    ]
    found = [(plan, WorkerSnapshot(plan.name, READY)) for plan in plans]
    return LaunchSnapshot(found, HostDevices(tuple(range(8)), 8, 0), LIMITS, proxies=["proxy"])


STAGES = (("decode:0", "decode", "llm"), ("recognizer:0", "node", "recognizer"), ("speaker:0", "node", "speaker"))


def test_each_stage_keeps_somebody_who_serves() -> None:
    for name, _, _ in STAGES:
        with pytest.raises(LaunchError, match=f"Nobody else would serve but {name}"):
            planned({"command": "restart", "names": [name]}, staged(*STAGES))
    two = staged(*STAGES, ("speaker:1", "node", "speaker"))
    assert steps({"command": "restart", "names": ["speaker:0"]}, two) == [(RolloutGoal.RENEWED, "speaker:0")]
    assert steps({"command": "scale", "counts": {"speaker": 1}}, two) == [(RolloutGoal.GONE, "speaker:1")]
    with pytest.raises(LaunchError, match="Nobody else would serve but speaker:0, speaker:1"):
        planned({"command": "scale", "counts": {"speaker": 0}}, two)
    assert steps({"command": "scale", "counts": {"decode": 0, "mixed": 1, "speaker": 2}, "force": True},
                 staged(*STAGES)) == [
        (RolloutGoal.GONE, "decode:0"), (RolloutGoal.THERE, "mixed:0"), (RolloutGoal.THERE, "speaker:1"),
    ]  # fmt: skip


def test_a_worker_without_tokens_keeps_its_role() -> None:
    with pytest.raises(OptionError, match="speaker:0 computes a stage without tokens: it cannot work as decode"):
        planned({"command": "role", "names": ["speaker:0"], "role": "decode"}, staged(*STAGES))
    with pytest.raises(OptionError, match="--node speaker must be a whole number of workers"):
        planned({"command": "scale", "counts": {"speaker": -1}}, staged(*STAGES))


def test_a_worker_that_embeds_keeps_its_role() -> None:
    three = snapshot("prefill:0", "decode:0", "embed:0")
    with pytest.raises(OptionError, match="embed:0 embeds texts by a model of its own"):
        planned({"command": "role", "names": ["embed:0"], "role": "decode"}, three)
    with pytest.raises(OptionError, match="role is one of prefill, decode, mixed"):
        planned({"command": "role", "names": ["decode:0"], "role": "embed"}, three)
    assert steps({"command": "scale", "counts": {"embed": 2}}, three) == [(RolloutGoal.THERE, "embed:1")]


def test_workers_that_joined_cannot_know_who_else_serves() -> None:
    assert planned({"command": "restart", "names": ["decode:0"]}, snapshot("decode:0", proxies=0)).minimum == 0


def test_proxies_are_restarted_where_they_run_and_the_only_one_by_force() -> None:
    request = {"command": "restart", "proxies": True, "drain_timeout": 3}
    two = snapshot("decode:0", proxies=2)
    assert steps(request, two) == [(RolloutGoal.RELIEVED, "proxy:0"), (RolloutGoal.RELIEVED, "proxy:1")]
    assert planned(request, two).limits.drain == 3.0
    with pytest.raises(LaunchError, match="launch with --proxies 2, or say --force"):
        planned(request, PAIR)
    assert steps(request | {"force": True}) == [(RolloutGoal.RELIEVED, "proxy:0")]
    for force in (False, True):
        with pytest.raises(LaunchError, match="no proxy: restart it where it runs"):
            planned(request | {"force": force}, snapshot("decode:0", proxies=0))


def test_a_proxy_alone_has_nothing_to_change() -> None:
    with pytest.raises(LaunchError, match="no workers"):
        planned({"command": "scale", "counts": {"decode": 1}}, snapshot())
    assert steps({"command": "restart", "all": True}, snapshot()) == []


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["decode:0", "mixed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["decode", "mixed", "x"]), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(["names", "role", "counts", "all", "force", "drain_timeout"])
COMMANDS = st.sampled_from(["drain", "undrain", "restart", "role", "scale"]) | ANYTHING


@settings(max_examples=examples(60, 300), deadline=None)
@given(COMMANDS, st.dictionaries(KEYS, ANYTHING))
def test_whatever_is_sent_is_a_change_or_a_sentence(command: Any, request: dict[str, Any]) -> None:
    try:
        change = planned(request | {"command": command}, PAIR)
    except (LaunchError, OptionError) as error:
        assert error.message.endswith((".", "--force."))
    else:
        assert {step.name for step in change.steps} <= {"prefill:0", "decode:0"} | {
            step.name for step in change.steps if step.aim is RolloutGoal.THERE
        }


def test_data_parallel_ranks_change_together() -> None:
    places = [Placement("cpu", (0,)), Placement("cpu", (1,))]
    config = {"peer_endpoint": "ipc:///run/x", "data_parallel_size": 2}
    group = plan_ranks("decode:1", "decode", places, config, "ipc:///run/x-ranks")
    workers = [*PAIR.workers, (group, WorkerSnapshot("decode:1", READY, DrainState.WORKING))]
    request = {"command": "drain", "names": ["decode:1+1", "decode:1"]}
    assert steps(request, replace(PAIR, workers=workers)) == [(RolloutGoal.DRAINED, "decode:1")]


GATED: list[tuple[dict[str, Any], list[bool]]] = [
    ({"command": "restart", "all": True}, [True, True, False]),
    ({"command": "undrain", "names": ["decode:1"]}, [True]),
    ({"command": "scale", "counts": {"decode": 0, "prefill": 2}}, [False, False, True]),
]


@pytest.mark.parametrize(("request_fields", "expected"), GATED)
def test_a_gate_is_before_each_worker_that_comes_to_serve(request_fields: dict[str, Any], expected: list[bool]) -> None:
    where = snapshot("prefill:0", "decode:0", "decode:1", decode1=DrainState.DRAINED)
    change = planned(request_fields | {"gate": 20.0}, where)
    assert [step.gated for step in change.steps] == expected and change.limits.gate == 20.0
    assert not any(step.gated for step in planned(request_fields, where).steps)


@pytest.mark.parametrize(
    ("request_fields", "says"),
    [
        ({"command": "drain", "names": ["decode:0"], "gate": 20}, "No worker that generates comes to serve"),
        ({"command": "restart", "proxies": True, "force": True, "gate": 20}, "No worker that generates"),
        ({"command": "restart", "names": ["embed:0"], "gate": 20}, "No worker that generates"),
        ({"command": "restart", "all": True, "gate": "soon"}, "--gate-timeout must be"),
    ],
)
def test_a_gate_without_a_worker_is_refused(request_fields: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        planned(request_fields, snapshot("prefill:0", "decode:0", "embed:0"))
