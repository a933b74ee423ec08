# SPDX-License-Identifier: Apache-2.0
"""The files of a repository that serve a model."""

import pytest

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hub.file_choice import choose

DIRECTORY = ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "snac/model.safetensors"]
OTHERS = ["pytorch_model.bin", "README.md", "original/model.safetensors", "consolidated.safetensors", "run.py"]
PARTS = [f"Q8_0/a-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
FILES = ["a-Q4_K_M.gguf", "a-IQ4_XS.gguf", "a-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", *PARTS]


def test_a_directory_without_what_executes_and_without_copies() -> None:
    chosen = choose([*DIRECTORY, *OTHERS, "a-Q4_K_M.gguf"], None)
    assert sorted(chosen.paths) == sorted(DIRECTORY) and chosen.entry == ""


@pytest.mark.parametrize(
    ("wanted", "paths"),
    [
        (None, ["a-Q4_K_M.gguf"]),
        ("Q4_K_M", ["a-Q4_K_M.gguf"]),
        ("q4_k_m", ["a-Q4_K_M.gguf"]),
        ("UD-Q4_K_XL", ["a-UD-Q4_K_XL.gguf"]),
        ("a-IQ4_XS.gguf", ["a-IQ4_XS.gguf"]),
        ("Q8_0", PARTS),
        (PARTS[1], PARTS),
    ],
)
def test_a_gguf_file_by_name_or_quantization(wanted: str | None, paths: list[str]) -> None:
    chosen = choose([*DIRECTORY, *FILES] if wanted else FILES, wanted)
    assert list(chosen.paths) == paths and chosen.entry == paths[0]


@pytest.mark.parametrize(
    ("paths", "wanted", "says"),
    [
        (FILES, "Q4_K", "none of its GGUF files is meant by 'Q4_K'"),
        (FILES, "F16", "none of its GGUF files"),
        (FILES, "b.gguf", r"append `:` and one of Q8_0/a-Q8_0-00001-of-00002\.gguf, a-IQ4_XS"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", r"several .*'Q8_0'.* a-Q8_0\.gguf, b-Q8_0\.gguf"),
        (["a-Q8_0.gguf", "a-Q2_K.gguf"], None, "none of its GGUF files is meant without"),
        (PARTS[:1], "Q8_0", "of the 2 parts of Q8_0/a-Q8_0-00001-of-00002.gguf it has 1"),
        (OTHERS, None, "neither config.json with"),
        (["config.json", "tokenizer.json"], None, "neither config.json with"),
    ],
)
def test_what_leaves_no_choice(paths: list[str], wanted: str | None, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        choose(paths, wanted)


def test_the_only_gguf_file_needs_no_name() -> None:
    assert choose(["a-Q2_K.gguf", "config.json", "README.md"], None).paths == ("a-Q2_K.gguf",)
