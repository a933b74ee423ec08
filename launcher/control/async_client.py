# SPDX-License-Identifier: Apache-2.0
"""A request to a supervisor from an event loop. One that is cancelled closes its connection at once."""

import asyncio
import json
from pathlib import Path
from typing import Any

from pontil.launcher.control.control_client import CONNECT_TIMEOUT, SILENCE_TIMEOUT, ControlReply
from pontil.launcher.control.control_socket import NAME
from pontil.launcher.foundation.errors import LaunchError

LONGEST_LINE = 1 << 24


async def converse(folder: Path, request: dict[str, Any]) -> ControlReply:
    """Send a request to the supervisor and return its final reply. Raises LaunchError."""
    try:
        opening = asyncio.open_unix_connection(str(folder / NAME), limit=LONGEST_LINE)
        reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT)
    except (OSError, asyncio.TimeoutError) as error:
        raise LaunchError(f"The launcher of {folder} cannot be asked: {error or 'it does not answer'}.") from None
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await asyncio.wait_for(reader.readline(), SILENCE_TIMEOUT):
            message = json.loads(line) if line.strip() else {}
            if "end" in message:
                return ControlReply(message["end"], message["code"], message["facts"])
    except asyncio.TimeoutError:
        raise LaunchError(f"The launcher of {folder} does not answer: it hangs, or was stopped.") from None
    except (OSError, ValueError, KeyError) as error:
        raise LaunchError(f"The launcher of {folder} cannot be asked: {error}.") from None
    finally:
        writer.close()
    raise LaunchError(f"The launcher of {folder} ended before it was done.")
