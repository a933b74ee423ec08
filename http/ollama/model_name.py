# SPDX-License-Identifier: Apache-2.0
"""Names of models as Ollama has them: a name without a tag means the tag `latest`."""

TAG = ":latest"


def own_name(name: str | None, *served_names: str) -> str | None:
    """Return the name under which a model is served here, where the one of a request means it; else the latter."""
    plain = None if name is None else name.removesuffix(TAG)
    return next((served for served in served_names if served.removesuffix(TAG) == plain), name)


def tagged(name: str) -> str:
    """Return a name with its tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{TAG}"
