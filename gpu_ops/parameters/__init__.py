# SPDX-License-Identifier: Apache-2.0
"""Products with weights."""
