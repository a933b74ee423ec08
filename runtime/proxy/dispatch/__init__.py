# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to the workers that routing chooses, by what these have cached and have done lately."""
