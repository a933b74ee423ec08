# SPDX-License-Identifier: Apache-2.0
"""Series for Prometheus."""
