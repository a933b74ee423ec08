# SPDX-License-Identifier: Apache-2.0
"""Libraries that only those have who put a load on a server."""

from importlib import import_module

from pontil.launcher.foundation.errors import OptionError


def require(library: str, purpose: str) -> None:
    """Raises OptionError where a library of the extra `bench` is missing."""
    try:
        import_module(library)
    except ImportError:
        raise OptionError(f"{purpose} with {library}, which is not installed: pip install 'pontil[bench]'") from None
