# SPDX-License-Identifier: Apache-2.0
"""The class of a request in the words of OpenAI and Anthropic, and what usage tells of it
(docs/guide/contracts.md)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import WordType
from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.requests.ticket import Ticket

# The class that each word asks for; None: the one that the key has. No word raises a request above that.
TIERS: Mapping[str, ServiceClass | None] = MappingProxyType(
    {
        "auto": None,
        "default": ServiceClass.STANDARD,
        "flex": ServiceClass.BATCH,
        "priority": ServiceClass.INTERACTIVE,
        "scale": ServiceClass.INTERACTIVE,
    }
)
# The words in which answers tell their class.
TOLD: Mapping[ServiceClass, str] = MappingProxyType(
    {ServiceClass.INTERACTIVE: "priority", ServiceClass.STANDARD: "default", ServiceClass.BATCH: "flex"}
)
SERVICE_TIER = Parameter(
    "service_tier", WordType(tuple(TIERS)), "the class of the request, at most that of its key", "auto"
)


def told_class(ticket: Ticket, fair_by: str) -> tuple[str, float | None]:
    """Return the class of a request and the share of its key, as they are told: no share where that is every other
    key's, or shares do not count."""
    return TOLD[ticket.service_class], ticket.weight if fair_by == "key" and ticket.weight != 1.0 else None


def class_usage(tier: str, share: float | None) -> dict[str, Any]:
    """Return the fields of usage that tell of the class and the share by which a request was served."""
    return {"service_tier": tier} | ({} if share is None else {"share": share})
