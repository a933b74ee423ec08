# SPDX-License-Identifier: Apache-2.0
"""The class of a request in the words of OpenAI and Anthropic (docs/guide/contracts.md)."""

from collections.abc import Mapping
from types import MappingProxyType

from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import WordType
from pontil.runtime.foundation.fair_share import ServiceClass

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
