# SPDX-License-Identifier: Apache-2.0
"""The start of a worker: its part of the model, memory and engine."""
