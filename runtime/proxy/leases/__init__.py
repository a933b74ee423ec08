# SPDX-License-Identifier: Apache-2.0
"""The proxy's view of the leases on prefixes that workers hold."""
