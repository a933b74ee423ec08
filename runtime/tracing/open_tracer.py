# SPDX-License-Identifier: Apache-2.0
"""The tracer of a proxy, if its configuration names a collector. Only then OpenTelemetry's libraries are imported."""

from collections.abc import Callable

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.tracing.tracer import SpanCounts, Tracer


def open_tracer(
    config: ProxyConfig, counts: SpanCounts, failures: ThreadFailures, clock: Callable[[], float]
) -> Tracer | None:
    """Return the tracer, which is yet to be started. Raises PontilError if its libraries are not here."""
    if config.otlp_traces_endpoint is None:
        return None
    try:
        from pontil.runtime.tracing.otlp_export import Collector, OtlpExport
    except ImportError as error:
        raise PontilError(
            f"traces need OpenTelemetry's SDK and exporter, which cannot be imported ({error}): run "
            "`pip install pontil[otel]`"
        ) from None
    collector = Collector(config.otlp_traces_endpoint, config.trace_headers, config.name, config.version)
    return Tracer(config.otlp_traces_sample_rate, OtlpExport(collector, counts, failures), clock)
