# SPDX-License-Identifier: Apache-2.0
"""Timelines of requests: spans and events of the proxy and of the workers, of each request within bounds."""
