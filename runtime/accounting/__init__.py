# SPDX-License-Identifier: Apache-2.0
"""Who is billed what: counts stated by the workers, checked and clamped."""
