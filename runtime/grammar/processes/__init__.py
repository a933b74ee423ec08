# SPDX-License-Identifier: Apache-2.0
"""Child processes that work on clients' texts within limits."""
