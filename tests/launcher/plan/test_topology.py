# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import fields
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.ports import address_towards
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.addresses import MAX_IPC_PATH, url_host
from pontil.launcher.plan.models import own_name
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.chat import dialect
from pontil.runtime.config.proxy_config import CALL_PARSERS, REASONING_PARSERS, proxy_config
from pontil.runtime.config.worker_config import Deadlines, worker_config
from pontil.runtime.foundation import connectors
from pontil.runtime.probe.footprint import MemoryDemand
from pontil.runtime.probe.other_workers import OtherWorker

TWO_CORES = HostDevices((0, 1), 2, 0)
JOIN = "ipc:///run/there/control"


def topology(machine: HostDevices = TWO_CORES, run: str = "/run/pontil/7", **flags: Any) -> Topology:
    return plan(read_options(flags), machine, Path(run), Path("/cache"))


def placements(made: Topology) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {child.name: (child.device, child.cores) for child in made.children}


def test_everything_on_two_cores() -> None:
    made = topology()
    assert placements(made) == {"proxy": ("cpu", (0, 1)), "prefill:0": ("cpu", (0,)), "decode:0": ("cpu", (1,))}
    assert made.url == "http://127.0.0.1:8000"


def test_every_process_keeps_what_it_derives_in_the_same_cache() -> None:
    assert {child.config["cache_dir"] for child in topology().children} == {"/cache"}


def test_cores_are_lent_where_each_is_one_workers() -> None:
    def lent_cores(**flags: Any) -> list[str | None]:
        made = topology(HostDevices((0, 1), 2, 1), **flags)
        return [child.config["lent_cores"] for child in made.children if not child.is_proxy]

    assert lent_cores(prefill="cpu", decode="cpu") == ["/run/pontil/7/cores"] * 2
    assert lent_cores(prefill="cpu", decode="cuda:0") == ["/run/pontil/7/cores", None]
    assert lent_cores(prefill="cpu", decode="cpu", lend_cores=False) == [None, None]
    assert lent_cores(prefill="cpu:0", decode="cpu:0", share_devices=True) == [None, None]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"role": "mixed"}, ["proxy", "mixed:0"]),
        ({"role": "mixed", "join": JOIN, "mixed": "cpu*2"}, ["mixed:0", "mixed:1"]),
        ({"role": "proxy"}, ["proxy"]),
        ({"role": "prefill", "join": JOIN}, ["prefill:0"]),
        ({"role": "decode", "join": JOIN, "decode": "cpu:0,cpu:1"}, ["decode:0", "decode:1"]),
        ({"role": "decode", "join": JOIN, "decode": "cpu:0,cpu:1", "first_number": 7}, ["decode:7", "decode:8"]),
        ({"decode": "none"}, ["proxy", "prefill:0"]),
    ],
)
def test_roles_decide_which_processes_run(flags: dict[str, Any], names: list[str]) -> None:
    made = topology(**flags)
    assert [child.name for child in made.children] == names
    assert made.first_number == flags.get("first_number", 0), "those that are added are counted from there too"


def test_a_lone_worker_has_the_whole_machine() -> None:
    assert placements(topology(role="mixed"))["mixed:0"] == ("cpu", (0, 1))


def test_gpus_are_used_where_there_are_any() -> None:
    machine = HostDevices(tuple(range(8)), 8, 3)
    assert placements(topology(machine))["decode:0"][0] == "cuda:1"
    assert placements(topology(machine, decode="0,2"))["prefill:0"][0] == "cuda:1"
    assert placements(topology(machine, decode="cpu"))["prefill:0"][0] == "cpu"
    with pytest.raises(OptionError, match="--role mixed"):
        topology(HostDevices((0, 1), 2, 1))
    assert placements(topology(HostDevices((0, 1), 2, 1), share_devices=True))["decode:0"][0] == "cuda:0"


def test_four_workers_on_four_gpus_from_one_line() -> None:
    made = topology(HostDevices(tuple(range(8)), 8, 4), prefill="0,1", decode="2,3")
    assert placements(made) == {
        "proxy": ("cpu", tuple(range(8))),
        "prefill:0": ("cuda:0", (0, 1)),
        "prefill:1": ("cuda:1", (2, 3)),
        "decode:0": ("cuda:2", (4, 5)),
        "decode:1": ("cuda:3", (6, 7)),
    }


def test_a_worker_over_two_devices_is_a_process_for_each() -> None:
    made = topology(HostDevices(tuple(range(8)), 8, 4), prefill="0+1", decode="2,3")
    assert [child.ranks for child in made.children] == [1, 2, 1, 1]
    worker = made.children[1]
    assert (worker.name, worker.place, worker.device) == ("prefill:0", "cuda:0+cuda:1", "cuda:0")
    driver, follower = worker.members
    assert (follower.name, follower.role, follower.device, follower.cores) == (
        "prefill:0+1",
        "prefill",
        "cuda:1",
        (2, 3),
    )
    assert follower.is_follower and not driver.is_follower and not made.children[2].is_follower
    one, other = worker_config(driver.config), worker_config(follower.config)
    assert [(rank.rank, rank.ranks, rank.device) for rank in (one, other)] == [(0, 2, "cuda:0"), (1, 2, "cuda:1")]
    assert one.rank_endpoint == other.rank_endpoint == "ipc:///run/pontil/7/prefill-0-ranks"
    assert worker_config(made.children[2].config).rank_endpoint is None
    assert worker.describe().splitlines() == [
        "prefill:0    2 ranks, each with 1/2 of the model",
        "  prefill:0    cuda:0   cores 0-1",
        "  prefill:0+1  cuda:1   cores 2-3",
    ]


def test_every_rank_has_what_its_worker_has() -> None:
    made = topology(HostDevices((0, 1, 2), 3, 0), prefill="cpu:0+cpu:1", decode="cpu:2")
    made = made.with_models({"smollm2-135m-instruct": "/m.gguf"}).with_keys("secret")
    worker = made.children[1].in_role("mixed").configured(log_level="debug")
    assert {one.role for one in worker.members} == {"mixed"} and worker.place == "cpu:0+cpu:1"
    for name, value in {"model": "/m.gguf", "keys": "secret", "role": "mixed", "log_level": "debug"}.items():
        assert [one.config[name] for one in worker.members] == [value] * 2
    assert [one.config["lent_cores"] is None for one in worker.members] == [True, True]
    assert made.children[2].config["lent_cores"] is not None and made.children[2].place == "cpu"


def test_who_finds_the_model_is_told_what_must_fit_where() -> None:
    machine = HostDevices(tuple(range(4)), 4, 2, (5 << 30, None))
    told = topology(
        machine, prefill="0,1", decode="cpu*2", max_model_len="7", dtype="bfloat16", kv_cache_dtype="int8"
    ).prepare.config["demands"]
    assert MemoryDemand(**told["smollm2-135m-instruct"]) == MemoryDemand(
        "bfloat16", "int8", "auto", 7, None, 16, [["cuda:0"], ["cuda:1"], ["cpu"], ["cpu"]], {"cuda:0": 5 << 30}
    )
    assert topology(role="proxy").prepare.config["demands"] == {}


def test_what_is_beside_the_answering_model_is_told_too() -> None:
    machine = HostDevices(tuple(range(4)), 4, 0)
    assert topology(machine, prefill="cpu", decode="cpu").prepare.config["others"] == []
    (told,) = topology(machine, prefill="cpu", decode="cpu", embed="cpu", kernels="torch").prepare.config["others"]
    assert OtherWorker(**told) == OtherWorker("all-minilm-l6-v2", None, True, ["cpu"], has_kernels=False)


def test_a_model_in_several_files_has_one_name() -> None:
    names = {"/x/a-00002-of-00003.gguf": "a", "b-1.gguf": "b-1", "owner/c": "c", "d": "d"}
    assert {model: own_name(model) for model in names} == names


def test_a_count_splits_the_free_cores() -> None:
    made = topology(HostDevices(tuple(range(6)), 6, 0), prefill="cpu:4-5", decode="cpu*2")
    assert placements(made) | {"proxy": ("", ())} == {
        "proxy": ("", ()),
        "prefill:0": ("cpu", (4, 5)),
        "decode:0": ("cpu", (0, 1)),
        "decode:1": ("cpu", (2, 3)),
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"role": "prefill"}, "--join"),
        ({"role": "mixed", "http": "0"}, "--http is for workers that another router drives"),
        ({"http": "0"}, "not all: use --port"),
        ({"role": "decode", "http": "0", "join": JOIN}, "give one"),
        ({"role": "decode", "http": "0", "model": "speech-demo"}, "models of one stage"),
        ({"role": "all", "join": JOIN}, "--join"),
        ({"role": "mixed", "join": JOIN, "control": JOIN}, "give one"),
        ({"role": "mixed", "decode": "cpu"}, "--decode has no meaning"),
        ({"role": "proxy", "prefill": "cpu"}, "--prefill has no meaning"),
        ({"mixed": "cpu"}, "--mixed has no meaning"),
        ({"prefill": "none", "decode": "none"}, "No worker is left"),
        ({"otlp_headers": "/h"}, "give --otlp-traces-endpoint too"),
        ({"role": "prefill", "join": JOIN, "otlp_traces_endpoint": "http://127.0.0.1"}, "give it where the proxy"),
        ({"run": "/" + "x" * MAX_IPC_PATH}, "XDG_RUNTIME_DIR"),
    ],
)
def test_combinations_that_cannot_be_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        topology(**flags)


def test_configurations_are_what_the_processes_take() -> None:
    given: dict[str, Any] = {
        "allowed_hosts": "llm.example", "max_body_size": "16MiB", "cors_origin": "https://app.example",
        "strict_parameters": True,
    }  # fmt: skip
    made = topology(kv_cache_memory="1GiB", served_model_name="small", **given)
    assert made.prepare.config["models"] == ["smollm2-135m-instruct"]
    made = made.with_models({"smollm2-135m-instruct": "/cache/x.gguf"})
    proxy, *workers = made.children
    taken = [worker_config(worker.config) for worker in workers]
    assert [worker.cores for worker in taken] == [(0,), (1,)]
    assert {worker.kv_cache_memory for worker in taken} == {1 << 30}
    assert {worker.control for worker in taken} == {proxy_config(proxy.config).control, made.control}
    assert {child.config["model"] for child in made.children} == {"/cache/x.gguf"}
    served = proxy_config(json.loads(json.dumps(proxy.config)))
    assert (served.allowed_hosts, served.max_body_size) == (("llm.example",), 1 << 24)
    assert served.cors_origin == ("https://app.example",) and served.strict_parameters
    assert len({worker.peer_endpoint for worker in taken}) == 2


def test_workers_that_embed_have_a_model_of_their_own() -> None:
    made = topology(embed="cpu:0", prefill="cpu:0", decode="cpu:1", share_devices=True, max_model_len=512)
    assert made.prepare.config["models"] == ["smollm2-135m-instruct", "all-minilm-l6-v2"]
    made = made.with_models({"smollm2-135m-instruct": "/cache/x.gguf", "all-minilm-l6-v2": "/cache/model"})
    proxy, prefill, _, embed = made.children
    served, told = proxy_config(proxy.config), worker_config(embed.config)
    assert (served.model, served.embedding_model) == ("/cache/x.gguf", "/cache/model")
    assert (told.name, told.model, told.served_model_name) == ("embed:0", "/cache/model", "all-minilm-l6-v2")
    assert served.served_embedding_model_name == "all-minilm-l6-v2"
    # The limit is that of the other model.
    assert (told.max_model_len, worker_config(prefill.config).max_model_len) == (None, 512)


def test_a_proxy_embeds_where_it_is_asked_to() -> None:
    (plain,), (other,) = topology(role="proxy").children, topology(role="proxy", embedding_model="/models/e").children
    assert proxy_config(plain.config).embedding_model is None
    assert proxy_config(other.config).served_embedding_model_name == "e"
    machine = HostDevices((0, 1), 2, 2, gpu_memory=(5, None))
    joined = topology(machine, role="embed", join=JOIN, embedding_model="/models/e", max_model_len=64)
    assert joined.prepare.config["models"] == ["/models/e"] and joined.prepare.config["demands"] == {}
    # Such a launch is compared with the memory of GPUs too.
    assert joined.prepare.config["gpu_memory"] == {"cuda:0": 5}
    assert worker_config(joined.children[0].config).max_model_len == 64


def test_every_deadline_reaches_the_process_that_keeps_it() -> None:  # C14, D13
    """Give each deadline its own value, so that none can be taken for another."""
    names = [each.name for each in fields(Deadlines)]
    wanted: dict[str, Any] = {
        name: 700.0 + number for number, name in enumerate((*names, "worker_ttl", "failover_timeout"))
    }
    wanted |= {"kv_stall_timeout": 600.0, "kv_transfer_timeout": 900.0}
    proxy, prefill, decode = topology(**wanted).children
    for worker in (prefill, decode):
        told = worker_config(worker.config).deadlines
        assert {name: getattr(told, name) for name in names} == {name: wanted[name] for name in names}
    kept = proxy_config(proxy.config)
    assert (kept.first_byte_timeout, kept.link_timeout) == (wanted["first_byte_timeout"], wanted["link_timeout"])
    assert (kept.worker_ttl, kept.failover_timeout) == (wanted["worker_ttl"], wanted["failover_timeout"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"worker_ttl": "1.9"}, "at least 2 s"),
        ({"link_timeout": "0.9"}, "at least 1 s"),
        ({"kv_lease": "1", "kv_stall_timeout": "0.5"}, "at least 2 s"),
        ({"kv_lease": "5"}, "Give a longer lease"),
        ({"kv_lease": "121"}, "raise --kv-transfer-timeout"),
        ({"first_byte_timeout": "300"}, "raise --kv-transfer-timeout"),
        ({"usage_log_days": "30"}, "name it as --usage-log FILE"),
    ],
)
def test_deadlines_that_contradict_each_other_are_refused(flags: dict[str, Any], words: str) -> None:  # C14
    with pytest.raises(OptionError, match=words):
        topology(**flags)


def test_the_names_of_parsers_are_those_of_the_parsers() -> None:
    assert (CALL_PARSERS, REASONING_PARSERS) == (dialect.CALL_PARSERS, dialect.REASONING_PARSERS)
    for calls, reasoning in zip(CALL_PARSERS, cycle(REASONING_PARSERS), strict=False):
        taken = proxy_config(topology(tool_call_parser=calls, reasoning_parser=reasoning).children[0].config)
        assert (taken.tool_call_parser, taken.reasoning_parser) == (calls, reasoning)


@pytest.mark.parametrize(("model", "name"), [("a-b", "a-b"), ("/m/tiny", "tiny"), ("m/x.Q4.gguf", "x.Q4"), ("/", "/")])
def test_a_model_is_called_by_the_last_part_of_its_path(model: str, name: str) -> None:
    assert topology(model=model).children[0].config["served_model_name"] == name


@pytest.mark.parametrize(
    ("host", "written"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("box", "box")]
)
def test_clients_are_told_an_address_they_can_use(host: str, written: str) -> None:
    assert url_host(host) == written


def test_a_control_endpoint_on_a_network_needs_a_word() -> None:
    with pytest.raises(OptionError, match="--keys FILE.*--insecure"):
        topology(role="proxy", control="tcp://10.1.2.3:7000")
    with pytest.raises(OptionError, match="give one of the two"):
        topology(role="proxy", control="tcp://10.1.2.3:7000", insecure=True, keys="k")
    assert topology(role="proxy", control="tcp://10.1.2.3:7000", keys="k").control == "tcp://10.1.2.3:7000"
    made = topology(role="all", control="tcp://10.1.2.3:7000", insecure=True)
    places = [(child.config["peer_endpoint"], child.config["transfer_host"]) for child in made.children[1:]]
    assert places == [("tcp://10.1.2.3:0", "10.1.2.3")] * 2
    made = topology(role="all", control="tcp://fd00::3:7000", insecure=True)
    places = [(child.config["peer_endpoint"], child.config["transfer_host"]) for child in made.children[1:]]
    assert places == [("tcp://[fd00::3]:0", "fd00::3")] * 2


def test_keys_reach_every_process_but_who_looks_for_the_model() -> None:
    secret = "ab" * 32
    made = topology().with_keys(secret)
    assert [child.config["keys"] for child in made.children] == [secret] * 3 and "keys" not in made.prepare.config
    assert secret not in repr(made) and secret not in "".join(child.describe() for child in made.children)


def test_workers_with_an_endpoint_of_their_own_have_a_proxy_and_an_address() -> None:
    proxy, worker = topology(role="prefill", http="8100", port="8100").children
    assert proxy_config(proxy.config).kv_transfers and proxy_config(proxy.config).port == 8100
    assert worker_config(worker.config).peer_endpoint == "tcp://127.0.0.1:0"
    _, far = topology(role="decode", http="8100", control="tcp://10.1.2.3:7000", insecure=True).children
    assert (far.config["peer_endpoint"], far.config["transfer_host"]) == ("tcp://10.1.2.3:0", "10.1.2.3")
    assert not proxy_config(topology().children[0].config).kv_transfers


def test_who_joins_over_a_network_is_reached_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.launcher.plan.workers.address_towards", lambda host: f"towards-{host}")
    (worker,) = topology(role="decode", join="tcp://10.1.2.3:7000", insecure=True).children
    assert (worker.config["peer_endpoint"], worker.config["transfer_host"]) == (
        "tcp://towards-10.1.2.3:0",
        "towards-10.1.2.3",
    )
    assert worker.config["control"] == "tcp://10.1.2.3:7000"
    (near,) = topology(role="decode", join="tcp://127.0.0.1:7000").children
    assert near.config["peer_endpoint"].startswith("ipc://")


def test_the_own_address_is_the_one_packets_leave_from() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    with pytest.raises(LaunchError, match="is not known"):
        address_towards("nobody.invalid")


def test_a_draft_model_is_for_workers_that_decode() -> None:
    made = topology(HostDevices((0, 1), 2, 0), speculative_model="gemma3-270m", speculative_tokens="4")
    assert made.prepare.config["models"] == ["smollm2-135m-instruct", "gemma3-270m"]
    demand = MemoryDemand(**made.prepare.config["demands"]["smollm2-135m-instruct"])
    assert demand.speculative_model == "gemma3-270m" and demand.drafting == [False, True]
    made = made.with_models({"smollm2-135m-instruct": "/m.gguf", "gemma3-270m": "/d.gguf"})
    prefill, decode = (worker_config(child.config) for child in made.children[1:])
    assert decode.draft_model_path == Path("/d.gguf") and decode.speculative_tokens == 4
    assert prefill.draft_model_path is None and prefill.speculative_model == "/d.gguf"
    # One that is started anew in another role has it.
    assert worker_config(made.children[1].in_role("mixed").config).draft_model_path == Path("/d.gguf")
    # The model's own layer is no model to be found.
    own = topology(prefill="cpu:0", decode="cpu:1", speculative_model="mtp")
    assert own.prepare.config["models"] == ["smollm2-135m-instruct"]
    found = own.with_models({"smollm2-135m-instruct": "/m"}).children[1:]
    assert [worker_config(child.config).speculative_model for child in found] == ["mtp", "mtp"]
    default = topology(role="mixed", speculative_model="gemma3-270m").children[1].config
    assert default["speculative_tokens"] == 8
    with pytest.raises(OptionError, match=r"decode:0 has 2 devices joined by \+, and --speculative-model"):
        topology(HostDevices((0, 1, 2), 3, 0), prefill="cpu:0", decode="cpu:1+cpu:2", speculative_model="gemma3-270m")


def test_workers_that_add_parts_of_sums_have_as_many_devices() -> None:
    fast: dict[str, Any] = {"tensor_parallel_arithmetic": "fast", "share_devices": True}
    with pytest.raises(OptionError, match="prefill:0 has 2 and decode:0 1: give each as many"):
        topology(prefill="cpu:0+cpu:1", decode="cpu:0", **fast)
    alike = topology(prefill="cpu:0+cpu:1", decode="cpu:0+cpu:1", embed="cpu:0", embedding_model="bge", **fast)
    ranks = [child for child in alike.children if child.role in ("prefill", "decode")]
    assert [child.config["tensor_parallel_arithmetic"] for child in ranks] == ["fast"] * 2
    (demand,) = alike.prepare.config["demands"].values()
    assert MemoryDemand(**demand).row_parallel
    topology(prefill="cpu:0+cpu:1", decode="cpu:0", share_devices=True)


def test_experts_are_shared_out_to_workers_of_several_devices() -> None:
    with pytest.raises(OptionError, match=r"each of these has one: join devices with \+"):
        topology(prefill="cpu:0", decode="cpu:1", expert_parallel=True)
    made = topology(prefill="cpu:0+cpu:1", decode="cpu:0", share_devices=True, expert_parallel=True)
    assert all(child.config["expert_parallel"] for child in made.children[1:])
    topology(role="proxy", expert_parallel=True)


def test_nixl_needs_its_package_and_does_not_go_with_keys_across_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="--kv-connector: .*`pip install nixl-cu12`"):
        topology(kv_connector="nixl")
    assert topology(role="proxy", kv_connector="nixl").children, "a proxy moves no blocks"
    monkeypatch.setattr(connectors, "find_spec", lambda name: object())
    with pytest.raises(OptionError, match="does not encrypt what --keys protects"):
        topology(role="all", control="tcp://10.1.2.3:7000", keys="k", kv_connector="nixl")
    for allowed in ({"insecure": True, "control": "tcp://10.1.2.3:7000"}, {"keys": "k"}):
        made = topology(role="all", kv_connector="nixl", **allowed)
        assert [child.config["kv_connector"] for child in made.children[1:]] == ["nixl"] * 2
