# SPDX-License-Identifier: Apache-2.0
"""A worker's connections to proxies and to other workers."""
