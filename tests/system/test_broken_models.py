# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be served: each ends the launch with one sentence, exit code 1 and no traceback."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from command_line import APP
from forked_program import run_program
from safetensors.torch import load_file, save_file
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama
from workers import open_worker

from pontil.launcher.options.options import read_options
from pontil.runtime.errors import PontilError
from pontil.runtime.loaders.gguf.header import read_header

Break = Callable[[Path], Path]
WEIGHTS, NORM = "model.safetensors", "model.norm.weight"


def whole(model: Path) -> Path:
    return model


def with_config(**fields: Any) -> Break:
    def break_it(model: Path) -> Path:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return model

    return break_it


def with_tensor(name: str, tensor: torch.Tensor | None) -> Break:
    """Return a break that replaces the tensor of that name, or removes it."""

    def break_it(model: Path) -> Path:
        tensors = load_file(model / WEIGHTS) | ({} if tensor is None else {name: tensor})
        save_file({one: found for one, found in tensors.items() if one != name or tensor is not None}, model / WEIGHTS)
        return model

    return break_it


def cut(name: str, kept: int) -> Break:
    """Return a break that truncates a file of the model; a negative length counts from its end."""

    def break_it(model: Path) -> Path:
        (model / name).write_bytes((model / name).read_bytes()[:kept])
        return model

    return break_it


def garbled(name: str) -> Break:
    def break_it(model: Path) -> Path:
        (model / name).write_bytes(os.urandom(1 << 16))
        return model

    return break_it


def as_gguf(change: Callable[[bytes], bytes] = bytes, **changes: Any) -> Break:
    """Return a break that writes the model as a GGUF file with changed contents."""

    def break_it(model: Path) -> Path:
        config = write_tiny_llama(model.with_name("source"))
        path = write_tiny_gguf(model.with_suffix(".gguf"), model.with_name("source"), config, **changes)
        path.write_bytes(change(path.read_bytes()))
        return path

    return break_it


def with_unknown_type(content: bytes) -> bytes:
    """Change the first matrix's type to NVFP4: name, 2 dimensions, type."""
    name = b"token_embd.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    return content[:at] + int(gguf.GGMLQuantizationType.NVFP4).to_bytes(4, "little") + content[at + 4 :]


BROKEN: dict[str, tuple[Break, tuple[str, ...], str]] = {
    "weights cut off": (cut(WEIGHTS, -1000), (), "model.safetensors is damaged or cut off"),
    "weights cut in their header": (cut(WEIGHTS, 100), (), "model.safetensors is damaged or cut off"),
    "empty weights": (cut(WEIGHTS, 0), (), "model.safetensors is damaged or cut off"),
    "garbled weights": (garbled(WEIGHTS), (), "model.safetensors is damaged or cut off"),
    "a missing tensor": (with_tensor(NORM, None), (), f"lacks the tensor {NORM}: fetch the model again"),
    "a tensor of the wrong shape": (with_tensor(NORM, torch.ones(3)), (), f"{NORM} [3], not [64]"),
    "a tensor of whole numbers": (
        with_tensor(NORM, torch.ones(64, dtype=torch.int8)), (), f"the tensor {NORM} as I8: this version reads F32",
    ),
    "garbled configuration": (garbled("config.json"), (), "config.json is not JSON: fetch the model again"),
    "an unknown architecture": (with_config(model_type="mamba"), (), "'mamba' is not known: this version runs llama"),
    "an unsupported quantization": (
        with_config(quantization_config={"quant_method": "hqq"}), (), "so give it the model's own weights",
    ),
    "a garbled tokenizer": (garbled("tokenizer.json"), (), "tokenizer.json"),
    "a GGUF file cut off": (as_gguf(lambda data: data[:-1000]), (), "is cut off before the end of"),
    "a GGUF file cut in its header": (as_gguf(lambda data: data[:500]), (), "is not a whole GGUF file"),
    "an empty GGUF file": (as_gguf(lambda data: b""), (), "is not a whole GGUF file"),
    "a GGUF file without a tensor": (
        as_gguf(drop="blk.1.attn_q.weight"), (), "lacks the tensor model.layers.1.self_attn.q_proj.weight",
    ),
    "a GGUF file of an unknown type": (as_gguf(with_unknown_type), (), "NVFP4, which cannot be read"),
    "a quantization that the file has not": (whole, ("--quantization", "gguf"), "needs a GGUF file, or a directory"),
    "a quantization without kernels": (
        whole, ("--quantization", "int8", "--kernels", "torch"), "--quantization int8 needs a CPU's kernels",
    ),
    "memory for less than one sequence": (
        whole, ("--kv-cache-memory", "4KiB"), "too few for one sequence: raise --kv-cache-memory to",
    ),
    "memory for less than the length that was asked for": (
        whole, ("--kv-cache-memory", "64KiB", "--max-model-len", "500"), "or lower --max-model-len",
    ),
    "a longer context than the model's": (whole, ("--max-model-len", "5000"), "is more than the 512 this model"),
    "weights beyond the memory": (
        with_config(hidden_size=1 << 18, intermediate_size=1 << 20, num_attention_heads=1 << 14), (),
        "is too large: a worker with",
    ),
    "a KV cache beyond the memory": (whole, ("--kv-cache-memory", "4000TiB"), "or lower --kv-cache-memory"),
}  # fmt: skip


def refused(model: Path, *flags: str, code: int = 1) -> str:
    """Return the sentence with which a launch of this model ends."""
    done = run_program([str(APP), "launch", "--model", str(model), *flags], computing=True)
    *before, sentence = done.stderr.splitlines()
    assert done.returncode == code and sentence.startswith("Error: "), done.stderr
    assert "Traceback" not in done.stderr and not any("starting it again" in line for line in before)
    return sentence


# Found out before a worker reads anything.
EARLIER = ("weights beyond the memory", "a KV cache beyond the memory")


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in EARLIER])
def test_a_worker_refuses_what_it_cannot_serve(tmp_path: Path, name: str) -> None:
    """The worker's part of the sentence, without a process of its own."""
    breaks, flags, says = BROKEN[name]
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    texts = {flag[2:].replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    options = read_options(texts)
    settings = {field: getattr(options, field) for field in texts}
    with pytest.raises(PontilError) as caught:
        open_worker(breaks(tmp_path / "tiny"), tmp_path, "mixed:0", "mixed", **settings)
    assert says in str(caught.value)


# Whole launches at every run: one mistake in the weights, one in the configuration, one that the launcher finds. Each
# of the others is a start more.
OFTEN = ("weights cut off", "an unsupported quantization", "weights beyond the memory")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.long]) for name in BROKEN]
)
def test_what_cannot_be_served_ends_in_one_sentence(tmp_path: Path, name: str) -> None:
    """One worker suffices: it looks for its proxy only when it can serve."""
    breaks, flags, says = BROKEN[name]
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    model = breaks(tmp_path / "tiny")
    assert says in refused(model, "--role", "mixed", "--join", f"ipc://{tmp_path}/nobody", *flags)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) for name in ("weights cut off", "a garbled tokenizer")]
    + ["garbled configuration"],
)
def test_a_whole_launch_ends_likewise(tmp_path: Path, name: str) -> None:
    breaks, flags, says = BROKEN[name]
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    assert says in refused(breaks(tmp_path / "tiny"), "--port", "0", "--role", "mixed", *flags)


def test_a_gguf_model_that_is_whole_is_read(tmp_path: Path) -> None:
    """The unbroken model of the table above works."""
    path = as_gguf()(tmp_path / "tiny")
    assert len(read_header(path).tensors) == 21


def with_other_tokens(model: Path) -> Path:
    path = model / "tokenizer.json"
    path.write_text(path.read_text().replace('"!":', '"!!":'))
    return model


# Breaks of a draft model, and the reason why it cannot guess.
UNSUITED: dict[str, tuple[Break, str]] = {
    "a larger one": (with_config(num_hidden_layers=3), "is larger"),
    "one with other tokens": (with_other_tokens, "has another tokenizer than"),
    "none at all": (lambda model: model / "none", "--speculative-model: the model"),
    "garbled configuration": (cut("config.json", 30), "--speculative-model cannot be used"),
    "no MTP layer": (lambda model: Path("mtp"), "needs a checkpoint with an MTP layer, and tiny has none"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "a larger one" else [pytest.mark.long]) for name in UNSUITED]
)
def test_a_draft_model_that_cannot_guess_is_refused_before_weights_are_read(tmp_path: Path, name: str) -> None:
    breaks, says = UNSUITED[name]
    write_tiny_llama(tmp_path / "tiny")
    write_tiny_llama(tmp_path / "draft")
    draft = str(breaks(tmp_path / "draft"))
    sentence = refused(tmp_path / "tiny", "--port", "0", "--role", "mixed", "--speculative-model", draft, code=2)
    assert says in sentence
