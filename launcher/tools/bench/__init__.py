# SPDX-License-Identifier: Apache-2.0
"""The command `bench`: the load of an OpenAI-compatible server, and what its clients see of it."""
