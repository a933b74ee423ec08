# SPDX-License-Identifier: Apache-2.0
"""The commands `profile` and `plan`: a device's measured times, and what launches would do with them."""
