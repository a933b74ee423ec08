# SPDX-License-Identifier: Apache-2.0
"""Key change of a running launch: the file is read again, for every process that starts from then on."""

from collections.abc import Iterable
from pathlib import Path

from pontil.launcher.child.child import Child
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.key_file import read_key_file


def change_keys(path: Path, children: Iterable[Child]) -> str:
    """Read the keys again and return the outcome in words. A running process keeps the keys that it was started with:
    its connections go on, and no peer is cut off before it has the new keys too."""
    try:
        secret = read_key_file(path)
    except OptionError as error:
        return f"the keys stay what they were: {error.message}"
    changed = [child for child in children if child.plan.config.get("keys") != secret]
    for child in changed:
        child.plan = child.plan.with_keys(secret)
    if not changed:
        return f"the keys in {path} are the ones in use"
    return (
        f"new keys from {path} for every process that starts from now on; what runs keeps the old ones: once each host "
        "has read them, restart the proxy, and the workers follow by themselves"
    )
