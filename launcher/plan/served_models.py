# SPDX-License-Identifier: Apache-2.0
"""The models of a launch, and the names by which clients ask for them."""

import re
from pathlib import Path

from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.worker_roles import EMBED

EMBEDDING_MODEL = "all-minilm-l6-v2"


def served_name(options: LaunchOptions) -> str:
    """Return the model name that clients use."""
    return options.served_model_name or own_name(options.model)


def own_name(model: str) -> str:
    """Return the name of a model: for a path its last part, without a file extension, or the number of a file."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", Path(model).name) or model


def embedding_model(options: LaunchOptions) -> str | None:
    """Return the embedding model of this launch; None for one without."""
    embeds = options.role == EMBED or bool(options.embed)
    return options.embedding_model or (EMBEDDING_MODEL if embeds else None)


def served_embedding_name(options: LaunchOptions) -> str | None:
    """Return the name by which clients ask for vectors, if they can."""
    model = embedding_model(options)
    return None if model is None else options.served_embedding_model_name or own_name(model)
