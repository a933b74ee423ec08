# SPDX-License-Identifier: Apache-2.0
"""Admission: limits, queues and fairness before a request has a worker."""
