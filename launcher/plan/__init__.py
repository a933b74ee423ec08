# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch from its options: pure, and without side effects."""
