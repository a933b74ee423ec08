# SPDX-License-Identifier: Apache-2.0
"""Every connector that carries KV blocks, one row each: a new one is a module in `runtime/transfer/` and a row here.

Readers of the table: the option and its help, the worker that opens a connector, the descriptors on the wire, `auto`,
the metrics' thread names, and the doctor, which measures and judges each connector.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from pontil.runtime.foundation.entry_points import ENTRY_POINTS, missing

# Uses the first of the others that reaches a peer.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ConnectorRow:
    """One connector. `target` is a module and its class, `threads` are the names of its threads,
    and `reach` says where it can be used. Below `slow` bytes a second a handoff costs more than it should. For a
    connector that does not work here, `without` is the consequence and `mend` the remedy; a launch cannot do without
    one that is `needed`. One that is `on_gpus` moves blocks from GPU to GPU: a worker on a CPU has no use for it. One
    that needs one of some `packages`, which the extra of its name installs, is chosen by `auto` only where hosts have
    RDMA; unless it `encrypts`, it carries blocks to other hosts in the clear."""

    name: str
    target: str
    reach: str
    threads: tuple[str, ...]
    slow: float
    without: str
    mend: str
    needed: bool = False
    on_gpus: bool = False
    encrypts: bool = True
    packages: tuple[str, ...] = ()


# By name, in the order in which `auto` tries them.
CONNECTORS = {
    row.name: row
    for row in (
        ConnectorRow(
            "cuda",
            "runtime.transfer.cuda.connector:CudaConnector",
            "cuda between GPUs of one host",
            ("cuda-connector",),
            10e9,
            "workers on GPUs of this host hand over through host memory, which takes longer",
            "let processes of one user share GPU memory, which containers without a common IPC namespace forbid",
            on_gpus=True,
        ),
        ConnectorRow(
            "shm",
            "runtime.transfer.shm.connector:ShmConnector",
            "shm on one host",
            ("shm-connector",),
            1e9,
            "workers of this host hand over through TCP, which takes longer",
            "let processes of one user open each other's memory in /proc, which hardened containers forbid",
        ),
        ConnectorRow(
            "nixl",
            ENTRY_POINTS["nixl"].target,
            "nixl over RDMA",
            ("nixl-connector",),
            0.2e9,
            "workers with --kv-connector nixl cannot hand over",
            "see what UCX says with UCX_LOG_LEVEL=info, or take the default, --kv-connector auto",
            encrypts=False,
            packages=("nixl_cu12", "nixl_cu13"),
        ),
        ConnectorRow(
            "tcp",
            "runtime.transfer.tcp.connector:TcpConnector",
            "tcp",
            ("tcp-connector", "tcp-guest", "tcp-server"),
            0.2e9,
            "workers of different hosts cannot hand over",
            "let processes connect over the loopback network",
            needed=True,
        ),
    )
}
NAMES = (AUTO, *CONNECTORS)


def usable(on_gpu: bool, rdma: bool = False) -> list[str]:
    """Return the names of the connectors that `auto` tries on a worker on a GPU, or on a CPU. With `rdma` these need
    not encrypt, and may need packages."""
    return [name for name, row in CONNECTORS.items() if (on_gpu or not row.on_gpus) and (rdma or not row.packages)]


def optional() -> list[str]:
    """Return the names of the connectors that need a package of their own."""
    return [name for name, row in CONNECTORS.items() if row.packages]


def missing_package(row: ConnectorRow) -> str | None:
    """Return a sentence about the room or the package that this connector lacks here, or None where it lacks none."""
    if row.name in ENTRY_POINTS and (lack := missing(row.name)) is not None:
        return lack
    if not row.packages or any(find_spec(name) is not None for name in row.packages):
        return None
    package = row.packages[0].replace("_", "-")
    return f"the connector {row.name} needs the package {package}, which is not installed: run `pip install {package}`"
