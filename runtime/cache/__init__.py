# SPDX-License-Identifier: Apache-2.0
"""KV memory: where its bytes are, and who owns which block."""
