# SPDX-License-Identifier: Apache-2.0
"""Changes of a running launch, one at a time: drains, restarts, roles, more workers."""
