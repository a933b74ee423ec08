# SPDX-License-Identifier: Apache-2.0
"""The recordings and images of prompts, from a client's files to what encoders are given."""
