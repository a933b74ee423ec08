# SPDX-License-Identifier: Apache-2.0
"""The Prometheus series of drafts, from the counters in workers' heartbeats."""

from prometheus_client import CollectorRegistry, Counter

# A counter of right guesses by their place in the draft; places that a worker makes up are no series.
PLACED = "accepted_draft_tokens_at_"
PLACES = tuple(str(place) for place in range(16))


class DraftMetrics:
    """The series, under vLLM's names but for the prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"pontil_spec_decode_num_{name}", says, ["worker", *labels], registry=registry)

        self.by_worker = {
            "drafts": counter("drafts", "Drafts verified, of one or more tokens each"),
            "draft_tokens": counter("draft_tokens", "Tokens guessed and verified"),
            "accepted_draft_tokens": counter("accepted_tokens", "Guesses that were right"),
        }
        self.by_place = counter("accepted_tokens_per_pos", "Right guesses by their place in the draft", "position")

    def add(self, worker: str, name: str, difference: int) -> bool:
        """Add the growth of a counter; return whether it is one of these."""
        if name in self.by_worker:
            self.by_worker[name].labels(worker).inc(difference)
        elif name.startswith(PLACED) and name.removeprefix(PLACED) in PLACES:
            self.by_place.labels(worker, name.removeprefix(PLACED)).inc(difference)
        else:
            return False
        return True
