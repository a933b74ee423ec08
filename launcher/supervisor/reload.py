# SPDX-License-Identifier: Apache-2.0
"""Reload of a running launch on SIGHUP: its keys, and its options, of which only the log level may change."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pontil.launcher.child.child import Child
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.client_keys import change_client_keys, read_client_keys
from pontil.launcher.keys.key_file import change_keys
from pontil.launcher.options.options import NOTHING, OPTIONS, LaunchOptions, flag_name

# Options that a running process can change.
CHANGEABLE = ("log_level",)


class Reloader:
    """Applies changed options. `running` are the options in force; `read` reads them again from their sources. The
    environment's `variables` stay fixed."""

    def __init__(
        self, running: LaunchOptions, read: Callable[[], LaunchOptions], variables: Mapping[str, str] = NOTHING
    ) -> None:
        self.running, self.read, self.variables = running, read, variables

    def reload(self, children: Collection[Child]) -> list[str]:
        """Apply the changes that are possible, to these children and their restarts; return the outcome in words."""
        try:
            new_options = self.read()
        except OptionError as error:
            return [f"Nothing was reloaded: {error.message}"]
        changed_names = [option.name for option in OPTIONS if self.differs(option.name, new_options)]
        applied_names = [name for name in changed_names if name in CHANGEABLE]
        self.running = replace(self.running, **{name: getattr(new_options, name) for name in applied_names})
        if "log_level" in applied_names:
            for child in children:
                child.set_log_level(new_options.log_level)
        messages = [f"{flag_name_of(name)} is now {getattr(new_options, name)}" for name in applied_names] or [
            "Nothing has changed."
        ]
        if self.running.keys:
            messages.append(change_keys(Path(self.running.keys), children))
        if self.running.api_keys or self.running.admin_key:
            messages.append(change_client_keys(lambda: read_client_keys(self.running, self.variables), children))
        remaining_flags = [flag_name_of(name) for name in changed_names if name not in CHANGEABLE]
        if remaining_flags:
            messages.append(f"Only a new launch takes over {', '.join(remaining_flags)}.")
        return messages

    def differs(self, name: str, new_options: LaunchOptions) -> bool:
        """Return whether the option has changed. A port of 0 was resolved once, for good."""
        before, after = getattr(self.running, name), getattr(new_options, name)
        return bool(before != after and not (name == "port" and after == 0))


def flag_name_of(name: str) -> str:
    return next(flag_name(option) for option in OPTIONS if option.name == name)
