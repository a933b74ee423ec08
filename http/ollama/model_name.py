# SPDX-License-Identifier: Apache-2.0
"""Names of models as Ollama has them: a name without a tag means the tag `latest`."""

TAG = ":latest"


def own_name(name: str | None, served_name: str) -> str | None:
    """Return the name under which a model is served here, where the one of a request means it; else the latter."""
    means = name is not None and name.removesuffix(TAG) == served_name.removesuffix(TAG)
    return served_name if means else name


def tagged(name: str) -> str:
    """Return a name with its tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{TAG}"
