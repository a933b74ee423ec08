# SPDX-License-Identifier: Apache-2.0
"""The failure to fetch a file from the network."""

from pontil.runtime.errors import PontilError


class FetchFailed(PontilError):
    """A file that is not fetched: its words follow the place of its address in the request. They tell no more of the
    address than its host."""
