# SPDX-License-Identifier: Apache-2.0
"""Series on routing by the prefix caches of workers."""

from prometheus_client import CollectorRegistry, Counter


class RoutingMetrics:
    """The prompt tokens that were dispatched, and those of them that the chosen worker was thought to have cached."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tokens = Counter(
            "pontil_routing_prompt_tokens", "Prompt tokens that were sent to workers", registry=registry
        )
        self.found = Counter(
            "pontil_routing_found_tokens", "Prompt tokens that the chosen worker was expected to have cached",
            registry=registry,
        )  # fmt: skip

    def add(self, tokens: int, found: int) -> None:
        """Count a prompt that was sent to a worker."""
        self.tokens.inc(tokens)
        self.found.inc(found)
