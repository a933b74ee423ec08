# SPDX-License-Identifier: Apache-2.0
"""The address at which a peer serves its pool over TCP."""

import ipaddress
from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.descriptor import num_blocks, part, secret, whole
from pontil.runtime.transfer.tcp.frames import TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A peer's TCP address, from its descriptor, and the KV heads of its pool. Raises TransferError when the descriptor
    is not usable."""

    host: str
    port: int
    token: bytes
    num_blocks: int
    heads: range

    @classmethod
    def read(cls, descriptor: dict[str, Any], block_bytes: int, heads: range) -> "TcpAddress":
        descriptor = part(descriptor, "tcp")
        token = secret(descriptor, "token", TOKEN_BYTES)
        host, port = descriptor.get("host"), whole(descriptor, "port")
        try:
            ipaddress.ip_address(host if isinstance(host, str) else "")  # a name could take seconds to look up
        except ValueError:
            raise TransferError("the peer's descriptor has no usable 'host'") from None
        if not 0 < port < 1 << 16:
            raise TransferError("the peer's descriptor has no usable 'port'")
        return cls(str(host), port, token, num_blocks(descriptor, block_bytes), heads)
