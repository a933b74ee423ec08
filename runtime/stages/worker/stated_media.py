# SPDX-License-Identifier: Apache-2.0
"""The recordings and images that a receipt states, read from files and encoded again, without a proxy and a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.sequences.streamed import MediaInputs
from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.reporting import NoReports
from pontil.runtime.stages.graph.medium import IMAGE, Medium, begun_digest
from pontil.runtime.stages.media.child import image_library, read_image, read_sound
from pontil.runtime.stages.media.reader import MediaForms, media_forms
from pontil.runtime.stages.qwen3_omni.encoders.node import MediaNode
from pontil.runtime.stages.worker.node_assembly import assemble_node
from pontil.runtime.stages.worker.stage_parts import StageParts
from pontil.runtime.worker.start.stage_model import StageModel


@dataclass(frozen=True, slots=True)
class MediaFile:
    """The content of a file with a recording or an image, which errors call by its `name`."""

    name: str
    data: bytes


def stated_media(
    config: WorkerConfig,
    stage: StageModel | None,
    prompt: Sequence[int],
    stated: Sequence[Mapping[str, Any]],
    encoder: str,
    files: Sequence[tuple[str, bytes]],
) -> MediaInputs:
    """Return the rows of a prompt whose media, as they are `stated`, are in these files, one in each: names and
    contents. `config` is the encoder's, of the fingerprint `encoder`. Raises RequestError for others, and ModelError
    for a model that has no encoder."""
    graph, threads = config.graph or "", torch.get_num_threads()
    forms = media_forms(graph, config.model_path)
    if forms is None or not isinstance(stage, StageParts) or stage.media is None:
        raise ModelError(f"{config.model_path} has no encoder of recordings or images: name the receipt's model")
    read = [read_file(MediaFile(*file), told, forms) for file, told in zip(files, stated, strict=True)]
    builder = stage.media.begin(prompt, [medium for medium, _ in read])
    try:
        _, made = assemble_node(config, NoReports())
        assert isinstance(made.node, MediaNode), "a model that takes media encodes them"
        if made.node.identity != encoder:
            raise RequestError(f"the encoder is {made.node.identity} here, and the receipt has {encoder:.16}")
        for medium, data in read:
            builder.push(made.node.rows("", medium, memoryview(data)))
    finally:
        # The encoder needs one, and the decoder all.
        torch.set_num_threads(threads)
    return builder


def read_file(file: MediaFile, stated: Mapping[str, Any], forms: MediaForms) -> tuple[Medium, bytes]:
    """Return a medium and what its encoder is given. Raises RequestError for another one than that which is stated."""
    kind = stated["kind"]
    if kind not in forms.kinds:
        raise RequestError(f"this model has no encoder of the kind {kind!r:.20}")
    try:
        if kind == IMAGE:
            assert forms.squares is not None, "a model with an encoder of images"
            found, data = read_image(image_library(), file.data, forms.squares)
        else:
            found, data = read_sound(file.data)
    except (RequestError, ModelError) as error:
        raise RequestError(f"{file.name} cannot be read: {error}") from None
    medium = forms.medium(kind, found, len(data))
    digest = begun_digest(medium)
    digest.update(data)
    if digest.hexdigest() != stated["digest"]:
        raise RequestError(f"{file.name} is not the {kind} that the receipt states, or is decoded otherwise here")
    return medium, data
