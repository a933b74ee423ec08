# SPDX-License-Identifier: Apache-2.0
"""A tiny random model that speaks as Orpheus does: a Llama whose tokens are codes of sound, and a SNAC, in torch's own
modules and as a directory with the names of the published files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json, write_tiny_llama
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pontil.runtime.stages.orpheus.config import FRAME_CODES

BOOK, SIZE, CHANNELS, RATES = 64, 12, 16, (3, 2)
FIRST_CODE, END = "<custom_token_10>", "<custom_token_2>"
SNAC: dict[str, Any] = {
    "sampling_rate": 24000, "encoder_dim": SIZE >> 2, "encoder_rates": [2, 3], "decoder_dim": CHANNELS,
    "decoder_rates": list(RATES), "attn_window_size": None, "codebook_size": BOOK, "codebook_dim": 4,
    "vq_strides": [4, 2, 1], "noise": True, "depthwise": True,
}  # fmt: skip
FRAME_SAMPLES = 4 * 3 * 2


def orpheus_tokenizer() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    names = ["<|begin_of_text|>", "<|eot_id|>", *(f"<custom_token_{number}>" for number in range(10 + 7 * BOOK))]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


class PlainSnake(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.alpha * x).sin() ** 2 / self.alpha


class PlainNoise(nn.Module):
    """Adds `noise`, which its model sets."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = weight_norm(nn.Conv1d(channels, channels, 1, bias=False))
        self.noise = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.noise * self.linear(x)
        return made


class PlainUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        spread = nn.Conv1d(channels, channels, 7, padding=3 * dilation, dilation=dilation, groups=channels)
        parts = (
            PlainSnake(channels),
            weight_norm(spread),
            PlainSnake(channels),
            weight_norm(nn.Conv1d(channels, channels, 1)),
        )
        self.block = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.block(x)
        return made


class PlainBlock(nn.Module):
    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        inner = channels // 2
        up = nn.ConvTranspose1d(channels, inner, 2 * rate, rate, padding=(rate + 1) // 2, output_padding=rate % 2)
        units = (PlainUnit(inner, dilation) for dilation in (1, 3, 9))
        self.block = nn.Sequential(PlainSnake(channels), weight_norm(up), PlainNoise(inner), *units)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.block(x)
        return made


class PlainBook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codebook, self.out_proj = nn.Embedding(BOOK, 4), weight_norm(nn.Conv1d(4, SIZE, 1))


class PlainSnac(nn.Module):
    """SNAC's decoder, of the tensors that the published files have."""

    def __init__(self) -> None:
        super().__init__()
        self.books = [PlainBook() for _ in range(3)]
        self.quantizer = nn.Module()
        self.quantizer.quantizers = nn.ModuleList(self.books)
        spread = nn.Conv1d(SIZE, SIZE, 7, padding=3, groups=SIZE)
        blocks = (PlainBlock(CHANNELS >> number, rate) for number, rate in enumerate(RATES))
        last = CHANNELS >> len(RATES)
        self.convolutions = nn.Sequential(
            weight_norm(spread), weight_norm(nn.Conv1d(SIZE, CHANNELS, 1)), *blocks, PlainSnake(last),
            weight_norm(nn.Conv1d(last, 1, 7, padding=3)), nn.Tanh(),
        )  # fmt: skip
        self.decoder = nn.Module()
        self.decoder.model = self.convolutions

    @property
    def published(self) -> dict[str, Tensor]:
        """The tensors by their published names."""
        return {name: one for name, one in self.state_dict().items() if name.startswith(("quantizer.", "decoder."))}

    @torch.inference_mode()
    def sound(self, frames: Sequence[Sequence[int]], noise: Sequence[Tensor]) -> Tensor:
        """Return the samples of frames of seven codes, with the noise behind each rate."""
        levels = torch.tensor(frames).view(-1, FRAME_CODES)
        coarse, middle, fine = levels[:, :1], levels[:, [1, 4]], levels[:, [2, 3, 5, 6]]
        rows = torch.zeros(())
        for book, codes, repeats in zip(self.books, (coarse, middle, fine), (4, 2, 1), strict=True):
            made = book.out_proj(book.codebook(codes.reshape(1, -1)).transpose(1, 2))
            rows = rows + made.repeat_interleave(repeats, dim=-1)
        for block, numbers in zip([one for one in self.modules() if isinstance(one, PlainNoise)], noise, strict=True):
            block.noise = numbers
        sound: Tensor = self.convolutions(rows)
        return sound[0, 0]


def plain_snac() -> PlainSnac:
    """Return a random one, whose sound is neither silent nor cut off."""
    torch.manual_seed(5)
    model = PlainSnac().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = name.endswith(("alpha", "original0"))
            parameter.copy_(torch.rand_like(parameter) + 0.6 if is_scale else torch.randn_like(parameter) * 0.6)
    return model


@dataclass(frozen=True)
class TinyOrpheus:
    """The directory, the ids that are codes and the end of them, and the same SNAC in torch's modules."""

    path: Path
    codes: range
    end: int
    snac: PlainSnac

    def frames(self, ids: Sequence[int]) -> list[list[int]]:
        """Return the whole frames of the codes among some ids."""
        codes = [(token - self.codes.start) % BOOK for token in ids if token in self.codes]
        return [codes[start : start + FRAME_CODES] for start in range(0, len(codes) - FRAME_CODES + 1, FRAME_CODES)]


def write_tiny_orpheus(directory: Path) -> TinyOrpheus:
    tokenizer = orpheus_tokenizer()
    write_tiny_llama(directory, vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"LlamaForCausalLM"', '"LlamaForCausalLM", "OrpheusSnac"'))
    folder, snac = directory / "snac", plain_snac()
    folder.mkdir()
    write_json(folder / "config.json", SNAC)
    save_file(snac.published | {"encoder.block.0.bias": torch.zeros(1)}, folder / "model.safetensors")
    first, end = tokenizer.token_to_id(FIRST_CODE), tokenizer.token_to_id(END)
    assert first is not None and end is not None
    return TinyOrpheus(directory, range(first, first + FRAME_CODES * BOOK), end, snac)
