# SPDX-License-Identifier: Apache-2.0
"""The command `conformance`: the behaviours of OpenAI's API, checked on any server."""
