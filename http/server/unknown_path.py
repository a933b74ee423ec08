# SPDX-License-Identifier: Apache-2.0
"""The message for a path that does not exist."""

from collections.abc import Collection

RANKING = "no model that runs here ranks or scores texts: compare their vectors from /v1/embeddings"
# Prefixes of paths that OpenAI's API and its relatives have and this server has not, with a hint for each.
ABSENT: tuple[tuple[str, str], ...] = (
    ("/v1/conversations", "conversations are no objects here: use previous_response_id of /v1/responses"),
    ("/v1/assistants", "assistants are not served: use /v1/chat/completions"),
    ("/v1/threads", "threads are not kept: send all messages to /v1/chat/completions"),
    ("/v1/messages", "Anthropic's Messages API is not served: use /v1/chat/completions"),
    ("/v1/rerank", RANKING),
    ("/rerank", RANKING),
    ("/v1/score", RANKING),
    ("/score", RANKING),
    ("/v1/classify", RANKING),
    ("/classify", RANKING),
    ("/pooling", "pooling is not served: use /v1/embeddings"),
    ("/v1/moderations", "moderation is not served: the model that runs here generates text"),
    ("/v1/audio", "audio is not served: the model that runs here generates text"),
    ("/v1/images", "images are not served: the model that runs here generates text"),
    ("/v1/videos", "videos are not served: the model that runs here generates text"),
    ("/v1/realtime", "the Realtime API is not served: use /v1/chat/completions with stream"),
    ("/v1/batches", "batches are not served: send requests side by side"),
    ("/v1/files", "files are not kept: put their text into the prompt"),
    ("/v1/uploads", "files are not kept: put their text into the prompt"),
    ("/v1/vector_stores", "files are not kept: put their text into the prompt"),
    ("/v1/fine_tuning", "models are not trained here, only served"),
    ("/v1/edits", "edits are not served: use /v1/chat/completions"),
    ("/api", "Ollama's API is not served: use /v1/chat/completions"),
)


def what_to_say(path: str, known: Collection[str]) -> str:
    """Return one sentence. `known` are the paths that exist."""
    for beginning, says in ABSENT:
        if path == beginning or path.startswith(f"{beginning}/"):
            return f"there is nothing at {path}: {says}"
    meant = f"/v1{path.replace('/v1', '')}".rstrip("/")
    for guess in (path.rstrip("/"), meant, meant.removeprefix("/v1")):
        if guess in known:
            return f"there is nothing at {path}: did you mean {guess}?"
    return f"there is nothing at {path}: see /v1/completions, /v1/chat/completions, /v1/models and /openapi.json"
