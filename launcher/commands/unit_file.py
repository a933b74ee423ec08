# SPDX-License-Identifier: Apache-2.0
"""systemd unit files for a launch: text from values, without side effects.

The supervisor restarts its children itself. It exits with 1 when it has given up on them, and with 2 when the options
cannot be obeyed (systemd then does not restart it). systemd restarts the supervisor as rarely as the supervisor
restarts a child, counted over as many of its own windows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.device_list import DeviceItem
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.worker_roles import NODE
from pontil.launcher.supervisor.supervisor import DRAIN_MARGIN, KILL_GRACE, TERM_GRACE

# Options that name files with secrets. root copies them for the service at its start and at every reload, so that only
# root needs to read them. A credential of systemd (LoadCredential=) would stay what it was when the unit started.
SECRETS = ("keys", "api_keys", "admin_key", "receipt_key")
# The service's runtime directory, which is its user's.
RUN = "%t/%N"
WATCHDOG = 30
RESTART_PAUSE = 5
# Seconds beyond the longest time that the supervisor needs to end everything itself.
STOP_MARGIN = 5

# Each restriction is kept as long as no worker needs what it forbids. Left out, with the reason:
#   MemoryDenyWriteExecute   math libraries write code at run time
#   PrivateDevices, ProtectClock   close /dev to GPUs
#   PrivateUsers, ProtectProc   workers of two units on one host read each other's KV memory through /proc/<pid>/fd
HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet={capability}
AmbientCapabilities={capability}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
"""

UNIT = """\
# Written by `pontil units`. Change what it was written from, or add a drop-in: systemctl edit {name}
[Unit]
Description={description}
Wants=network-online.target
After={after}
StartLimitIntervalSec={limit_interval}
StartLimitBurst={limit_burst}

[Service]
Type=notify
NotifyAccess=main
{copies}ExecStart={command}
{copies_again}ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec={watchdog}
# A start and a stop that take longer say so themselves (EXTEND_TIMEOUT_USEC).
TimeoutStartSec=90
TimeoutStopSec={stop}
# SIGTERM goes to the supervisor, which drains; what is left after TimeoutStopSec is killed, children too.
KillMode=mixed
Restart=on-failure
RestartSec={pause}
RestartPreventExitStatus=2
SuccessExitStatus=130 143
# A worker that runs out of memory is the supervisor's to restart, not the end of the others.
OOMPolicy=continue
LimitNOFILE=65536
{user}
RuntimeDirectory=%N
CacheDirectory=pontil
StateDirectory=pontil
WorkingDirectory=%S/pontil
Environment=XDG_RUNTIME_DIR=%t/%N PONTIL_CACHE=%C/pontil HOME=%S/pontil PYTHONUNBUFFERED=1
{hardening}{writable}
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class UnitFile:
    """One launch as a service. `program` starts pontil; `words` follow its `launch`, with absolute paths and without
    the files of `secrets`, which are keyed by flag name. `user` is an existing account; None means one that systemd
    creates."""

    program: Sequence[str]
    options: LaunchOptions
    words: Sequence[str]
    secrets: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None

    @property
    def kind(self) -> str:
        """The role if the unit is one part of a system, else everything."""
        return self.options.role if self.options.join or self.options.role == "proxy" else "all"

    @property
    def is_template(self) -> bool:
        """Return whether this is a template: a group of workers is started once for each device, which names the
        instance."""
        return self.kind not in ("all", "proxy")

    @property
    def name(self) -> str:
        if self.kind == "all":
            return "pontil.service"
        stage = f"{self.options.node}-" if self.options.node else ""
        return f"pontil-{stage}{self.kind}@.service" if self.is_template else "pontil-proxy.service"

    @property
    def device_option(self) -> str:
        """The flag that gives a template's workers their devices."""
        return "place" if self.kind == NODE else self.kind

    def devices(self, item: str) -> str:
        """Return the value of that flag for a device."""
        return f"{self.options.node}={item}" if self.kind == NODE else item

    @property
    def asked(self) -> tuple[DeviceItem, ...] | None:
        """The devices of a template's workers, if they were named."""
        if self.kind == NODE:
            return tuple(item for stage in self.options.place for item in stage.items) or None
        named_devices: tuple[DeviceItem, ...] | None = getattr(self.options, self.kind)
        return named_devices

    @property
    def command(self) -> str:
        words = [*self.program, "launch", *self.words]
        quoted_words = [quote(word) for word in words]
        if self.is_template:
            quoted_words += [f"--{self.device_option}", self.devices("%i")]
        for name in self.secrets:
            quoted_words += [f"--{name}", f"{RUN}/{name}"]
        return " ".join(quoted_words)

    def copying(self, line: str) -> str:
        """Return lines of the kind `line` that copy the secrets, as root, for the service's user alone. The folder is
        that user's: no line follows a link that it may have put there."""
        copies = ""
        for name, path in self.secrets.items():
            copies += f"{line}=+/usr/bin/cp --remove-destination -T {quote(path)} {RUN}/{name}\n"
            copies += f"{line}=+/usr/bin/chown -h --reference={RUN}/. {RUN}/{name}\n"
        return copies

    @property
    def stop_timeout(self) -> int:
        return math.ceil(self.options.drain_timeout + DRAIN_MARGIN + TERM_GRACE + KILL_GRACE + STOP_MARGIN)

    @property
    def description(self) -> str:
        role = {"all": "server for large language models", "proxy": "proxy"}.get(self.kind, f"{self.kind} worker on %i")
        return f"pontil {role}"

    def text(self) -> str:
        options = self.options
        bursts = max(1, options.restart_attempts)
        return UNIT.format(
            name=self.name.replace("@", "@%i") if self.is_template else self.name,
            description=self.description,
            after="network-online.target" + (" pontil-proxy.service" if self.is_template else ""),
            limit_interval=math.ceil(bursts * (options.restart_window + RESTART_PAUSE)),
            limit_burst=bursts,
            command=self.command,
            copies=self.copying("ExecStartPre"),
            copies_again=self.copying("ExecReload"),
            watchdog=WATCHDOG,
            stop=self.stop_timeout,
            pause=RESTART_PAUSE,
            user=f"User={self.user}" if self.user else "DynamicUser=yes\nUser=pontil",
            hardening=HARDENING.format(capability="CAP_NET_BIND_SERVICE" if 0 < options.port < 1024 else ""),
            writable="".join(f"ReadWritePaths={quote(folder)}\n" for folder in writable(options)),
        )


def writable(options: LaunchOptions) -> list[str]:
    """Return the folders of the files that are written, each once."""
    files = (options.usage_log or "", options.response_store or "")
    folders = [folder_of(file) for file in files if file.startswith("/")]
    return list(dict.fromkeys([*folders, *(tier.path for tier in options.kv_tier if tier.path is not None)]))


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def escape(word: str) -> str:
    """Escape everything that systemd would expand."""
    if not word.isprintable():
        raise OptionError(f"{word!r} cannot stand in a unit file: use names without control characters.")
    return word.replace("%", "%%")


def quote(word: str) -> str:
    """Quote a word for systemd's splitting and unquoting of command lines (systemd.service(5))."""
    word = escape(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return word if word and not set(word) & set(" ;'\"\\") else f'"{word}"'
