# SPDX-License-Identifier: Apache-2.0
import json
import shlex

from pontil.launcher.child.child import Child
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.supervisor.announcement import example, overview


def child(name: str, device: str, cores: tuple[int, ...], **facts: object) -> Child:
    made = Child(ChildPlan(name, name.partition(":")[0], device, cores, {}), ExecStarter((), lambda threads: {}))
    made.facts = dict(facts)
    return made


def test_a_table_of_processes_and_one_of_pairs() -> None:  # G2
    children = [
        child("proxy", "cpu", (0, 1)),
        child("prefill:0", "cuda:0", (0,), kv_tokens=46592, kv_cache_dtype="int8"),
    ]
    results = [
        {"route": "prefill:0>decode:0", "bytes": 2_949_120, "seconds": 0.00147},
        {"route": "prefill:0>decode:1", "bytes": 2_949_120},
    ]
    assert overview(children, results) == [
        "  process    device  cores  KV tokens  KV dtype  pid",
        "  proxy      cpu       0-1          -  -           -",
        "  prefill:0  cuda:0      0     46,592  int8        -",
        "  pair                KV moved  GB/s",
        "  prefill:0>decode:0    2.9 MB  2.01",
        "  prefill:0>decode:1    2.9 MB     -",
    ]


def test_workers_alone_have_no_table_of_pairs() -> None:
    lines = overview([child("mixed:0", "cpu", (3,), kv_tokens=16)], [{"route": "mixed:0", "bytes": 0}])
    assert len(lines) == 2


def test_the_example_is_one_command_with_a_body() -> None:
    words = shlex.split(example("http://127.0.0.1:8000", "o'model"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "o'model"
    assert '-H "authorization: Bearer $KEY"' in example("http://127.0.0.1:8000", "m", asks_for_keys=True)
