# SPDX-License-Identifier: Apache-2.0
"""The value of `--speculative-model` that names no model: the MTP layer in the model's own checkpoint."""

MTP = "mtp"
