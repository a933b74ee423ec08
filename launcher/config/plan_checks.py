# SPDX-License-Identifier: Apache-2.0
"""Checks of combinations of options, before anything is planned. They raise OptionError."""

from pontil.launcher.config.addresses import is_own
from pontil.launcher.config.options import LaunchOptions
from pontil.launcher.config.parsers import host_of
from pontil.launcher.config.worker_roles import EMBED, WORKER_ROLES
from pontil.launcher.errors import OptionError

# Workers send heartbeats twice a second, and renew a lease in thirds of it: with shorter values a busy worker would be
# taken for a dead one.
SHORTEST_TTL = SHORTEST_LEASE = 2.0


def check_lists(options: LaunchOptions) -> None:
    meant = {"all": ("prefill", "decode", EMBED), "mixed": ("mixed", EMBED), "proxy": ()}.get(
        options.role, (options.role,)
    )
    for name in WORKER_ROLES:
        if getattr(options, name) is not None and name not in meant:
            raise OptionError(f"--{name} has no meaning with --role {options.role}: remove one of the two.")


def check_join(options: LaunchOptions) -> None:
    if options.role in ("all", "proxy") and options.join:
        raise OptionError(f"--join starts workers for a proxy that runs already: not with --role {options.role}.")
    if options.role in ("prefill", "decode", EMBED) and not options.join:
        raise OptionError(f"--role {options.role} starts workers only: name the proxy's --control with --join.")
    if options.join and options.usage_log:
        raise OptionError("--usage-log is kept by the proxy, and none is started here: give it where the proxy starts.")
    if options.join and options.response_store:
        raise OptionError("--response-store is the proxy's, and none is started here: give it where the proxy starts.")
    if options.join and (options.api_keys or options.admin_key):
        raise OptionError("--api-keys and --admin-key are the proxy's, and --join starts none: give them where it is.")
    if options.join and options.control:
        raise OptionError("--control is the endpoint of a proxy started here and --join of one elsewhere: give one.")


def check_deadlines(options: LaunchOptions) -> None:
    """Check that a deadline that includes another one is the longer of the two."""
    for name, value, least in (
        ("worker-ttl", options.worker_ttl, SHORTEST_TTL),
        ("kv-lease", options.kv_lease, SHORTEST_LEASE),
    ):
        if value < least:
            raise OptionError(f"--{name} is {value:g} s: workers need at least {least:g} s to say that they live.")
    if options.kv_lease <= options.kv_stall_timeout:
        raise OptionError(
            f"--kv-lease is {options.kv_lease:g} s and --kv-stall-timeout {options.kv_stall_timeout:g} s: the blocks "
            "of a pull that stalls would be gone before that is noticed. Give a longer lease."
        )
    for name, value in (("kv-lease", options.kv_lease), ("first-byte-timeout", options.first_byte_timeout)):
        if value > options.kv_transfer_timeout:
            raise OptionError(
                f"--{name} is {value:g} s, and a transfer is given up after {options.kv_transfer_timeout:g} s: "
                "raise --kv-transfer-timeout too."
            )


def check_exposure(options: LaunchOptions, control: str) -> None:
    """Refuse unprotected traffic across a network, unless the options ask for it."""
    host = host_of(control)
    if options.keys and options.insecure:
        raise OptionError("--keys protects what --insecure leaves open: give one of the two.")
    if host is not None and not is_own(host) and not options.keys and not options.insecure:
        raise OptionError(
            f"{control} crosses a network: give --keys FILE, the same on every host (`pontil keys new` makes it), or "
            "--insecure if everyone on that network may read and send requests."
        )
