# SPDX-License-Identifier: Apache-2.0
"""Parameters of both endpoints that clients of other servers send and that nothing is done with here: those that change
no answer, and those that would change it and are refused."""

from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import FlagType, InertType, NeutralType, ObjectType, TextType

INERT = (
    Parameter("user", InertType(TextType(), None), "who the end user is"),
    Parameter("safety_identifier", InertType(TextType()), "who the end user is"),
    Parameter("metadata", InertType(ObjectType(), ({},)), "for answers that are stored"),
    Parameter("store", InertType(FlagType(), (False,)), "keep the answer, which is not done"),
    Parameter("prompt_cache_retention", InertType(TextType()), "how long prefixes are cached"),
)
# Names of other servers' parameters with the values of them that ask for nothing.
FOREIGN: dict[str, tuple[object, ...]] = {
    # vLLM
    "bad_words": ([],), "logits_processors": ([],), "early_stopping": (False,),
    "guided_decoding": ({},), "prompt_embeds": ([],), "repetition_detection": ({},),
    # SGLang and llama.cpp
    "stop_regex": ([], ""), "lora_path": ("",),
    "custom_logit_processor": ("",), "separate_reasoning": (True,), "typical_p": (1,), "mirostat": (0,),
    "dynatemp_range": (0,), "dry_multiplier": (0,), "xtc_probability": (0,), "samplers": ([],),
    # Ollama and Hugging Face
    "format": ("",), "options": ({},), "think": (), "raw": (False,), "max_new_tokens": (), "num_predict": (),
    "do_sample": (True,), "extra_body": ({},), "vllm_xargs": ({},),
    # Anthropic, DeepSeek, Qwen and OpenAI's Responses
    "thinking": (), "enable_thinking": (), "reasoning": ({},), "system": ("", []), "input": ("", []),
    "instructions": ("",), "max_output_tokens": (), "stop_sequences": ([],), "previous_response_id": (),
    "plugins": ([],), "transforms": ([],),
}  # fmt: skip
UNSUPPORTED = tuple(
    Parameter(name, NeutralType(allowed_values), "a parameter of other servers")
    for name, allowed_values in FOREIGN.items()
)
