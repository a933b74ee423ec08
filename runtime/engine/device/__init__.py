# SPDX-License-Identifier: Apache-2.0
"""Steps on a device without waiting: one copy of inputs to it, and one of results back."""
