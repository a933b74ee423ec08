# SPDX-License-Identifier: Apache-2.0
"""The step: schedule, run, apply."""
