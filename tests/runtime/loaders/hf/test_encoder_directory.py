# SPDX-License-Identifier: Apache-2.0
"""The directory of an encoder is read as sentence-transformers means it, and what cannot be computed is refused."""

from pathlib import Path
from typing import Any

import pytest
from tiny_bert import write_tiny_bert
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import is_encoder
from pontil.runtime.loaders.hf.encoder_directory import (
    EncoderCheckpoint,
    read_encoder_config,
    stated_pooling,
)


def test_the_files_beside_the_model_decide(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "bert")
    config = read_encoder_config(folder)
    assert is_encoder(folder) and (config.max_positions, config.max_model_len) == (64, 32)
    (folder / "sentence_bert_config.json").unlink()
    assert read_encoder_config(folder).max_model_len == 64 and stated_pooling(folder) == "mean"
    write_tiny_llama(tmp_path / "llama")
    assert not is_encoder(tmp_path / "llama") and stated_pooling(tmp_path / "llama") is None


@pytest.mark.parametrize(("mode", "meant"), [("mean_tokens", "mean"), ("lasttoken", "last"), ("cls_token", "cls")])
def test_the_stated_pooling(tmp_path: Path, mode: str, meant: str) -> None:
    assert stated_pooling(write_tiny_bert(tmp_path, pooling=mode)) == meant


def test_another_pooling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="pools by pooling_mode_max_tokens"):
        stated_pooling(write_tiny_bert(tmp_path, pooling="max_tokens"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"position_embedding_type": "relative_key"}, "positions of the type 'relative_key'"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"num_attention_heads": 5}, "5 heads cannot share 48"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_encoder_config(write_tiny_bert(tmp_path, **fields))


def test_weights_decide_the_fingerprint(tmp_path: Path) -> None:
    one, same, other = (
        EncoderCheckpoint.open(write_tiny_bert(tmp_path / str(number), seed=seed)).fingerprint
        for number, seed in enumerate((0, 0, 1))
    )
    assert one == same != other
