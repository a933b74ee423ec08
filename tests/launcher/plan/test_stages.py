# SPDX-License-Identifier: Apache-2.0
"""Stages on devices: what is planned for a model of several stages, and each mistake in one sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import app
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.cli import cli
from pontil.launcher.commands.stage_lines import drawing, stage_lines
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.options.stage_list import PlacedStage, read_placement, stages
from pontil.launcher.plan.graph_choice import graph_of
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.config.worker_config import worker_config
from pontil.runtime.stages.graph.catalog import GRAPHS

TWO_CORES = HostDevices((0, 1), 2, 0)
FOUR_GPUS = HostDevices(tuple(range(8)), 8, 4)
JOIN = "ipc:///run/there/control"
OMNI, DEMO = "Qwen/Qwen3-Omni-30B-A3B-Instruct", "speech-demo"
SPLIT = 'thinker.prefill = "0"\nthinker.decode = 1\ntalker = [2]\ncode2wav = "2"\n'


def topology(model: str = OMNI, machine: HostDevices = FOUR_GPUS, **flags: Any) -> Topology:
    return plan(read_options({"model": model, **flags}), machine, Path("/run/x"), Path("/cache"))


def devices(made: Topology) -> dict[str, str]:
    return {child.name: child.device for child in made.children if not child.is_proxy}


def cores(made: Topology) -> dict[str, tuple[int, ...]]:
    return {child.name: child.cores for child in made.children if not child.is_proxy}


def file(folder: Path, text: str) -> str:
    path = folder / "placement.toml"
    path.write_text(text)
    return str(path)


def test_a_file_says_where_each_stage_runs(tmp_path: Path) -> None:
    made = topology(placement=file(tmp_path, SPLIT))
    assert devices(made) == {"prefill:0": "cuda:0", "decode:0": "cuda:1", "talker:0": "cuda:2", "code2wav:0": "cuda:2"}
    proxy, prefill, decode, talker, code2wav = made.children
    assert [child.role for child in made.children[1:]] == ["prefill", "decode", "mixed", "node"]
    told = worker_config(json.loads(json.dumps(talker.config)))
    assert (told.graph, told.node, told.stream_memory) == ("qwen3-omni", "talker", 256 << 20)
    assert worker_config(prefill.config).node == "thinker" and prefill.group == decode.group == "thinker"
    assert code2wav.group == "code2wav" and proxy_config(proxy.config).graph == "qwen3-omni"
    assert made.shares and made.prepare.config["models"] == [OMNI]


def test_flags_win_over_the_file_stage_by_stage(tmp_path: Path) -> None:
    made = topology(
        placement=file(tmp_path, SPLIT), place="talker.prefill=3,talker.decode=0,1,code2wav=cpu", stream_memory="1GiB"
    )
    assert devices(made) == {
        "prefill:0": "cuda:0", "decode:0": "cuda:1", "talker-prefill:0": "cuda:3", "talker-decode:0": "cuda:0",
        "talker-decode:1": "cuda:1", "code2wav:0": "cpu",
    }  # fmt: skip
    assert {worker_config(child.config).stream_memory for child in made.children[1:]} == {1 << 30}
    assert [child.role for child in made.children[3:]] == ["prefill", "decode", "decode", "node"]


def test_each_stage_loads_its_own_model() -> None:
    made = topology(DEMO, HostDevices(tuple(range(8)), 8, 0), max_model_len=512, speculative_tokens=2)
    assert made.prepare.config["models"] == ["smollm2-135m-instruct", "hibari-heart", "whisper-tiny.en"]
    assert made.prepare.config["demands"]["smollm2-135m-instruct"]["workers"] == [["cpu"], ["cpu"]]
    others = [(other["model"], other["stage"], other["own"]) for other in made.prepare.config["others"]]
    assert sorted(others) == [("hibari-heart", "speaker", True), ("whisper-tiny.en", "recognizer", True)]
    paths = {"smollm2-135m-instruct": "/m/llm", "hibari-heart": "/m/voice", "whisper-tiny.en": "/m/ears"}
    proxy, prefill, _, speaker, recognizer = made.with_models(paths).children
    assert (proxy.config["model"], proxy.config["served_model_name"]) == ("/m/llm", "speech-demo")
    assert [one.config["model"] for one in (prefill, speaker, recognizer)] == ["/m/llm", "/m/voice", "/m/ears"]
    # Limits and guesses are those of the model that answers.
    assert [one.config["max_model_len"] for one in (prefill, speaker)] == [512, None]
    assert [one.config["speculative_tokens"] for one in (prefill, speaker)] == [2, 0]
    assert [one.config["lent_cores"] for one in (prefill, speaker)] == ["/run/x/cores", None]
    # Enough cores: each worker has its own, and nothing is to be said.
    assert sum(map(len, cores(made).values())) == 8 and not made.shares and stage_lines(made) == []


def test_stages_share_what_there_is_and_the_launch_says_so() -> None:
    made = topology(DEMO, TWO_CORES)
    # The speaker computes while the answer is decoded, the recognizer before the prompt is there.
    assert cores(made) == {"prefill:0": (0,), "decode:0": (1,), "speaker:0": (0,), "recognizer:0": (1,)}
    assert made.shares and {child.config.get("lent_cores") for child in made.children} == {None}
    (line,) = stage_lines(made)
    assert "core 0 has prefill:0, speaker:0; core 1 has decode:0, recognizer:0" in line
    assert cores(topology(DEMO, TWO_CORES, role="mixed")) == {"mixed:0": (0,), "speaker:0": (1,), "recognizer:0": (0,)}
    gpus = devices(topology(machine=HostDevices((0,), 1, 2), role="mixed"))
    assert gpus == {"mixed:0": "cuda:0", "talker:0": "cuda:1", "code2wav:0": "cuda:0", "encoder:0": "cuda:1"}


def test_the_drawing_shows_each_stage_and_what_it_feeds() -> None:
    lines = drawing(topology(DEMO, TWO_CORES, place="recognizer=none,llm=cpu:0,speaker=cpu:1"))
    assert [" ".join(line.split()) for line in lines] == [
        "recognizer on other hosts -transcript-> llm",
        "llm mixed:0 (core 0) -text-> speaker, -> text",
        "speaker speaker:0 (core 1) -> audio",
    ]
    assert drawing(topology("smollm2-135m-instruct")) == []


def test_the_first_stage_takes_the_flags_of_a_model_of_one() -> None:
    made = topology(prefill="0+1", decode="2", place="talker=3,code2wav=3")
    assert {child.name: child.place for child in made.children[1:]} == {
        "prefill:0": "cuda:0+cuda:1", "decode:0": "cuda:2", "talker:0": "cuda:3", "code2wav:0": "cuda:3",
    }  # fmt: skip
    assert [one.config["node"] for one in made.children[1].members] == ["thinker"] * 2


def test_one_stage_joins_a_proxy() -> None:
    made = topology(role="decode", node="talker", join=JOIN, decode="2,3")
    assert devices(made) == {"talker-decode:0": "cuda:2", "talker-decode:1": "cuda:3"}
    assert made.prepare.config["demands"] == {} and made.url is None
    assert devices(topology(role="node", node="code2wav", join=JOIN, place="code2wav=1")) == {"code2wav:0": "cuda:1"}
    assert devices(topology(role="mixed", node="talker", join=JOIN, mixed="cpu")) == {"talker:0": "cpu"}
    (first,) = topology(role="decode", join=JOIN, decode="0").children
    assert (first.name, first.config["node"]) == ("decode:0", "thinker")
    (embeds,) = topology(role="embed", join=JOIN, embed="cpu").children
    assert (embeds.config["graph"], embeds.config["node"]) == (None, None)


def test_texts_are_embedded_beside_the_stages() -> None:
    made = topology(DEMO, HostDevices(tuple(range(8)), 8, 0), embed="cpu")
    assert [child.name for child in made.children[1:]] == [
        "prefill:0", "decode:0", "speaker:0", "recognizer:0", "embed:0"
    ]  # fmt: skip
    assert made.children[-1].config["graph"] is None


def test_a_draft_model_needs_workers_that_generate_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = topology(DEMO, TWO_CORES, role="mixed", speculative_model="/draft")
    assert [child.config["speculative_model"] for child in made.children[1:]] == ["/draft", None, None]
    says = "guesses for {} of {}, and this launch starts no worker"
    with pytest.raises(OptionError, match=says.format("thinker", "qwen3-omni")):
        topology(role="decode", join=JOIN, node="talker", speculative_model="/draft")
    # A graph that begins with a stage without tokens.
    silent = replace(GRAPHS[DEMO], first="recognizer", audio=None)
    monkeypatch.setattr("pontil.launcher.plan.topology.graph_of", lambda model: silent)
    with pytest.raises(OptionError, match=says.format("recognizer", DEMO)):
        topology(DEMO, role="node", node="recognizer", join=JOIN, speculative_model="/draft")


WHOLE = "thinker=0,talker=1,code2wav=2"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"place": f"{WHOLE},vocoder=3"},
            "--place places a stage 'vocoder', and qwen3-omni has encoder, thinker, talker",
        ),
        ({"place": "thinker=0,talker.sing=1,code2wav=2"}, "talker.sing, and a stage has the walks prefill and decode"),
        ({"place": "thinker=0,talker=1,code2wav.decode=2"}, "code2wav has no prefill and decode: place code2wav"),
        ({"place": f"{WHOLE},talker=3"}, "places talker twice: give all of its devices in one list"),
        ({"place": f"{WHOLE},talker.decode=3"}, "places talker whole and talker.decode too"),
        ({"place": "thinker=0,talker.decode=1,code2wav=2"}, "has talker.decode and no talker.prefill"),
        ({"place": "thinker=0,code2wav=2"}, "says nothing of talker: place every stage"),
        ({"place": "talker=1,code2wav=2"}, "says nothing of thinker"),
        ({"place": "thinker=0,talker=1,1,code2wav=2"}, "cuda:1 is planned for two workers"),
        ({"place": "thinker.prefill=0,thinker.decode=0,talker=1,code2wav=2"}, "cuda:0 is planned for two workers"),
        ({"place": "thinker=0,talker=9,code2wav=2"}, "There is no cuda:9"),
        (
            {"place": "thinker=0,talker=1,code2wav=2+3"},
            r"code2wav:0 has 2 devices joined by \+, and code2wav makes no tokens",
        ),
        ({"place": "thinker=none,talker=none,code2wav=none"}, "No worker is left"),
        ({"place": WHOLE, "prefill": "3"}, "--prefill and the placement both say where thinker runs"),
        ({"place": WHOLE, "role": "mixed"}, "--role mixed and the placement both say where thinker runs"),
        ({"place": WHOLE, "role": "proxy"}, "--place has no meaning with --role proxy"),
        ({"place": "talker"}, "--place|place must be a list of stages"),
        ({"model": "smollm2-135m-instruct", "place": WHOLE}, "--place is for a model of several stages"),
        ({"model": "smollm2-135m-instruct", "placement": "/x"}, "--placement is for a model of several stages"),
        ({"model": "/nowhere", "role": "node", "join": JOIN}, "--role node is for a model of several stages"),
        ({"node": "talker"}, "--node starts one stage's workers for a proxy that runs already"),
        ({"node": "lips", "role": "decode", "join": JOIN}, "--node lips is no stage of qwen3-omni"),
        ({"role": "node", "join": JOIN}, r"name it with --node \(encoder, thinker, talker, code2wav\)"),
        ({"role": "node"}, "--role node starts workers only"),
        ({"role": "node", "node": "talker", "join": JOIN}, "talker have the role prefill, decode, mixed, not node"),
        ({"role": "decode", "node": "code2wav", "join": JOIN}, "code2wav have the role node, not decode"),
        ({"role": "node", "node": "code2wav", "join": JOIN, "place": "talker=1"}, "use --place code2wav=LIST"),
        ({"role": "decode", "node": "talker", "join": JOIN, "place": "talker=1"}, "use --decode"),
        ({"role": "decode", "node": "talker", "join": JOIN, "placement": "/x"}, "--placement places all stages"),
        ({"place": WHOLE, "revision": "b"}, "--revision is for models of one stage"),
        ({"placement": "/nowhere/x.toml"}, "The placement file /nowhere/x.toml cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        topology(**flags)
    assert refused.value.exit_code == 2 and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thinker = ", "is not valid TOML"),
        ("thinker = true", "thinker in placement.toml must be a list of devices"),
        ("thinker = 1.5", "must be a list of devices"),
        ('talker.prefill = "x"', "talker.prefill in placement.toml must be a comma list"),
        ("[talker.prefill.more]", "talker.prefill in placement.toml must be a list"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        read_placement(Path(file(tmp_path, text)))


def test_who_may_share_is_told_to_share(tmp_path: Path) -> None:
    made = topology(place="thinker=0,talker=1,1,code2wav=2", share_devices=True)
    assert devices(made)["talker:1"] == "cuda:1"


def test_walks_of_one_worker_only_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:  # E1
    """No graph here has a stage with a state of its own that reads a stream; the launcher would refuse to split it."""
    omni = GRAPHS["qwen3-omni"]
    whole = replace(omni, nodes=tuple(replace(one, prefill_walks=()) for one in omni.nodes))
    monkeypatch.setattr("pontil.launcher.plan.topology.graph_of", lambda model: whole)
    with pytest.raises(OptionError, match="moves by a state of its own, so all of its walks are on one worker"):
        topology(place="thinker=0,talker.prefill=1,talker.decode=2,code2wav=2")


@given(st.lists(st.tuples(st.sampled_from(["a", "b.decode", "c-d"]), st.lists(st.integers(0, 99), min_size=1))))
def test_a_list_is_read_as_it_is_shown(entries: list[tuple[str, list[int]]]) -> None:
    text = ",".join(f"{name}={','.join(map(str, numbers))}" for name, numbers in entries) or "a=none"
    found = stages(text)
    assert ",".join(map(str, found)) == text and stages([str(one) for one in found]) == found


@given(st.text(max_size=30))
def test_any_other_text_is_refused_in_words(text: str) -> None:
    try:
        assert all(isinstance(one, PlacedStage) for one in stages(text))
    except ValueError as error:
        assert str(error).split()[0] in ("must", "may")


def test_a_directory_says_what_it_is(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert graph_of(str(tmp_path)) is None
    for text, known in (
        ('{"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}', True), ('{"architectures": ["Llama"]}', False),
        ('{"architectures": 3}', False), ("[]", False), ("{", False), ("[" * 100_000, False), ("\xff", False),
    ):  # fmt: skip
        config.write_text(text, encoding="latin-1")
        assert (graph_of(str(tmp_path)) is GRAPHS["qwen3-omni"]) is known, text
    assert graph_of("~nobody-has-this-name/x") is None and graph_of("x\0y") is None


def test_stages_are_drawn_in_the_plan_and_as_a_diagram() -> None:
    planned = app("launch", "--dry-run", "--model", "speech-demo", "--place", "recognizer=none,llm=cpu,speaker=cpu")
    assert planned.returncode == 0, planned.stderr
    assert [line.split()[1] for line in planned.stdout.splitlines() if line.startswith("stage ")] == [
        "recognizer", "llm", "speaker"
    ]  # fmt: skip
    refused = app("launch", "--dry-run", "--model", "speech-demo", "--place", "lips=0")
    assert refused.returncode == 2 and "places a stage 'lips'" in refused.stderr and "Traceback" not in refused.stderr
    drawn = CliRunner().invoke(cli, ["graph", "--model", "speech-demo"])
    assert drawn.exit_code == 0 and drawn.output.startswith("flowchart LR\n") and "speaker" in drawn.output
    unknown = CliRunner().invoke(cli, ["graph", "--model", "gemma3-270m"])
    assert unknown.exit_code == 2 and "gemma3-270m is no model of several stages" in unknown.output
