# SPDX-License-Identifier: Apache-2.0
"""The workers and the other proxies, as this proxy knows them."""
