# SPDX-License-Identifier: Apache-2.0
"""The hub that models are fetched from, and the right to do so."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The hub's address; the token that its own host is shown, which no message and no command line has; and whether
    it must not be asked at all."""

    endpoint: str = "https://huggingface.co"
    token: str | None = field(default=None, repr=False)
    offline: bool = False


PUBLIC = HubAccess()
