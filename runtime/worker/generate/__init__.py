# SPDX-License-Identifier: Apache-2.0
"""Workers that generate tokens: prefill and decode."""
