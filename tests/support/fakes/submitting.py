# SPDX-License-Identifier: Apache-2.0
"""The door of a proxy, for one prompt without an HTTP request."""

from typing import Any

from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.sampling_params import SamplingParams


def submit(proxy: Proxy, prompt: list[int], params: SamplingParams, **ticket: Any) -> Stream:
    """Submit a prompt by a ticket of these fields."""
    return proxy.submit(Ticket(**ticket), Generation(prompt, params))
