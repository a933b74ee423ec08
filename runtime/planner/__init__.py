# SPDX-License-Identifier: Apache-2.0
"""A planner: what a launch would do under a load, from the measured times of one device."""
