# SPDX-License-Identifier: Apache-2.0
"""Weights are read while a model is built, so that it is never in memory twice."""

from pathlib import Path

import pytest
import torch
from architectures import SIZES, hugging_model
from converter import convert

from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.weights import Weights

# More than ten: the alphabetical order of names is not that of layers.
DEEP = SIZES | {"num_hidden_layers": 12}


class WatchedCheckpoint(Weights):
    """`most` is the largest number of tensors that waited at once."""

    most = 0

    def read_on(self, *names: str) -> None:
        super().read_on(*names)
        self.most = max(self.most, len(self.left))


@pytest.mark.parametrize("kind", ["directory", "gguf"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3_moe"])
def test_few_tensors_wait_whatever_the_order_of_the_file(tmp_path: Path, name: str, kind: str) -> None:
    model = hugging_model(name, DEEP)
    if kind == "gguf":
        path = convert(model, tmp_path / "model.gguf")
    else:
        model.save_pretrained(path := tmp_path / "directory")
    checkpoint = open_checkpoint(path)
    weights = WatchedCheckpoint(checkpoint.tensors(torch.float32), torch.device("cpu"), torch.float32)
    build_model(checkpoint.config, weights)
    layer = sum("layers.3." in name for name in checkpoint.places)
    assert 0 < weights.most <= layer


def test_all_that_a_model_does_not_take_is_named() -> None:
    tensors = {name: torch.zeros(2) for name in ("a", "b", "c")}
    weights = Weights(tensors.items(), torch.device("cpu"), torch.float32)
    assert weights.take("b", 2).shape == (2,)
    with pytest.raises(Exception, match="does not know: a, c"):
        weights.finish()
