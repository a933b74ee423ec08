# SPDX-License-Identifier: Apache-2.0
"""The child process in which a client's recordings and images are decoded, within limits of the kernel: a file that is
made to exhaust or to crash a decoder ends nothing else.

A question is a line of JSON, the kind and the squares of images, and a file in base64. The answer is a line with a
MediaAnswer, and the bytes of the medium in base64.
"""

import base64
import io
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.grammar.processes.bounded_child import run_child
from pontil.runtime.stages.graph.medium import IMAGE
from pontil.runtime.stages.media.answer import MediaAnswer
from pontil.runtime.stages.nodes.squares import Squares
from pontil.runtime.stages.nodes.wav import read_wav, resample
from pontil.runtime.stages.nodes.windows import RATE

# The decoders of files of images that may be asked.
FORMATS = ("PNG", "JPEG")
NO_LIBRARY = "images need the library Pillow, which is not installed on this server: run `pip install pontil[images]`"


def main(arguments: list[str]) -> None:
    run_child(arguments, prepare)


def prepare() -> Callable[[str], str]:
    pillow = image_library()

    def answer(question: str) -> str:
        head, _, text = question.partition("\n")
        kind, squares = json.loads(head)
        data = base64.b64decode(text)
        try:
            made, medium = read_image(pillow, data, Squares(*squares)) if kind == IMAGE else read_sound(data)
        except (RequestError, ModelError) as error:
            made, medium = MediaAnswer(refused=str(error)), b""
        return f"{json.dumps(asdict(made))}\n{base64.b64encode(medium).decode()}"

    return answer


def image_library() -> Any:
    """Return Pillow, with the decoders that are asked; None where it is not installed."""
    try:
        from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin  # noqa: F401
    except ImportError:
        return None
    # The size is checked before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    return Image, ImageOps


def read_sound(data: bytes) -> tuple[MediaAnswer, bytes]:
    return MediaAnswer(), resample(read_wav(data), RATE).astype("<f4").tobytes()


def read_image(pillow: Any, data: bytes, squares: Squares) -> tuple[MediaAnswer, bytes]:
    """Decode a file, turn it as its camera says, and bring it into the size in which it enters."""
    if pillow is None:
        raise RequestError(NO_LIBRARY)
    image_module, operations = pillow
    try:
        with image_module.open(io.BytesIO(data), formats=FORMATS) as file:
            squares.of(file.height, file.width)
            image = operations.exif_transpose(file).convert("RGB")
    except RequestError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise RequestError(f"the file is no whole PNG or JPEG ({error})") from None
    lines, columns = squares.of(image.height, image.width)
    size = columns * squares.side, lines * squares.side
    if image.size != size:
        image = image.resize(size, image_module.Resampling.BICUBIC)
    return MediaAnswer(lines, columns), image.tobytes()
