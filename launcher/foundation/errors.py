# SPDX-License-Identifier: Apache-2.0
"""Errors before or during a launch. Each message is one sentence: what is wrong and what to do."""

import click


class OptionError(click.ClickException):
    """A flag, a configuration key or a combination of them that cannot be obeyed: exit code 2."""

    exit_code = 2


class LaunchError(click.ClickException):
    """The options were good but the launch failed: exit code 1."""

    exit_code = 1


class RefusedError(LaunchError):
    """Options that only other processes or the models' files show to be impossible: a worker whose settings differ from
    those of the workers it should join, or a draft model that does not fit. Exit code 2, of the child and of its
    launcher."""

    exit_code = OptionError.exit_code
