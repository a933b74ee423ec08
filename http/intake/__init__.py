# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: received, unpacked and read within limits."""
