# SPDX-License-Identifier: Apache-2.0
"""State that the proxies of one launch share: leases, usage of keys, records of streams, pages of metrics."""
