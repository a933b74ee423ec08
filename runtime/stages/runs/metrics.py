# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of runs: requests through several stages."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RunMetrics:
    """The series of one proxy's runs. `audio` counts the seconds that clients were given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("pontil_runs_running", "Runs of several stages in flight", registry=registry)
        self.audio = Counter("pontil_audio_seconds", "Seconds of audio that stages made for clients", registry=registry)
        self.replays = Counter(
            "pontil_stage_replays", "Stages that were computed again for their items alone", registry=registry
        )
        self.starved = Counter(
            "pontil_stages_starved", "Reports of a stage that items of another are missing", registry=registry
        )
