# SPDX-License-Identifier: Apache-2.0
"""The Responses API, over the path of a chat."""
