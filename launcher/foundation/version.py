# SPDX-License-Identifier: Apache-2.0
"""The version, defined only here."""

VERSION = "0.1.0"
