# SPDX-License-Identifier: Apache-2.0
"""The configuration of each kind of process, whose options are declared once, here."""
