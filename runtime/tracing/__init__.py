# SPDX-License-Identifier: Apache-2.0
"""Traces of requests for OpenTelemetry. Its libraries are imported only where a collector is named."""
