# SPDX-License-Identifier: Apache-2.0
"""Measure vLLM with a model of the shape that gpu_bench.py has, for its figures to stand beside.

    python scripts/gpu_peer.py [--device cuda:0] [--sequences 1,64,256] [--context 1024] [--prompt 2048]

Prints a JSON object: `decode_N`, milliseconds of a step of N sequences at that context, from the difference of two
lengths of answers; `prefill`, milliseconds of a prompt. Weights are random, and there is no tokenizer. Needs vLLM in
this environment; exits with 1 and a sentence without it.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SHORT, LONG = 8, 40
# As SHAPES in gpu_bench.py names it: 8b.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "hidden_act": "silu",
}


def seconds_of(model: Any, params: Any, prompts: list[list[int]]) -> float:
    begun = time.perf_counter()
    model.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
    return time.perf_counter() - begun


def measure(vllm: Any, folder: str, sequences: list[int], context: int, prompt: int) -> dict[str, float]:
    model = vllm.LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=max(context, prompt) + LONG,
        max_num_seqs=max(sequences),
        enable_prefix_caching=False,
        seed=0,
    )

    def params(tokens: int) -> Any:
        return vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)

    found = {}
    seconds_of(model, params(SHORT), [[5] * context])
    for count in sequences:
        prompts = [[5 + number] * context for number in range(count)]
        short, long = (min(seconds_of(model, params(size), prompts) for _ in range(3)) for size in (SHORT, LONG))
        found[f"decode_{count}"] = round((long - short) / (LONG - SHORT) * 1e3, 3)
    found["prefill"] = round(min(seconds_of(model, params(1), [[7] * prompt]) for _ in range(5)) * 1e3, 2)
    return found


def visible(device: str, outer: str | None) -> str:
    """Return the only device to be seen, given those that this process sees."""
    index = int(device.partition(":")[2] or 0)
    return outer.split(",")[index] if outer else str(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sequences", default="1,64,256")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=2048)
    arguments = parser.parse_args()
    if find_spec("vllm") is None:
        sys.exit("vLLM is not installed in this environment")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible(arguments.device, os.environ.get("CUDA_VISIBLE_DEVICES"))
    vllm = import_module("vllm")

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        sequences = [int(one) for one in arguments.sequences.split(",")]
        print(json.dumps(measure(vllm, folder, sequences, arguments.context, arguments.prompt)))


if __name__ == "__main__":
    main()
