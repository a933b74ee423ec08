# SPDX-License-Identifier: Apache-2.0
"""Disturbances of the processes of a launch that allows chaos, on the side of its supervisor."""
