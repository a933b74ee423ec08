# SPDX-License-Identifier: Apache-2.0
"""The options of a launch, each declared once, and the one place that reads the environment."""
