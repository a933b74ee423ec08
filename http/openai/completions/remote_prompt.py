# SPDX-License-Identifier: Apache-2.0
"""The prompts whose KV a router of others moves between two workers."""

import logging
from dataclasses import replace

from pontil.http.fields.kv_transfer import NAME, KVTransferFields
from pontil.http.fields.sampling import SamplingFields
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.remote_kv import KeepPrompt, RemoteKV

LOG = logging.getLogger("pontil.proxy")


def remote_kv(
    proxy: Proxy, asked: KVTransferFields | None, sampling: SamplingFields, name: str | None, prompts: int = 1
) -> RemoteKV | None:
    """Return what a router of others wants done with the prompt's KV, kept or taken from elsewhere; None if the request
    is to be served like any other. `name` is the request's id. Raises RequestError for what the router cannot have
    meant."""
    if asked is None:
        return None
    if proxy.config.graph is not None:
        says = "is for models of one stage, and this one has several: leave it out"
        raise RequestError(f"{NAME} {says}", param=NAME, code="unsupported_parameter")
    if prompts != 1:
        raise RequestError(f"{NAME} moves the KV of one prompt, and there are {prompts}: send one", param=NAME)
    if asked.keeps:
        if sampling.max_tokens != 1:
            limit = sampling.max_tokens_name
            raise RequestError(f"{NAME} with do_remote_decode is for one token: set {limit} to 1", param=NAME)
        return KeepPrompt(proxy.kv_transfers)
    if sampling.params.prompt_logprobs is not None:
        # They are known only where the whole prompt is computed.
        return None
    try:
        return proxy.kv_transfers.claim(asked.told)
    except ValueError as error:
        LOG.warning("a kept prompt is not asked for, but computed here: %s", error, extra={"request": name})
        return None


def moved(work: Generation, remote: RemoteKV | None) -> Generation:
    """Return the work with what is done with its prompt's KV. A router discards the answer to a prompt that is only to
    be kept, so that one choice of it is enough."""
    params = replace(work.params, n=1) if isinstance(remote, KeepPrompt) else work.params
    return replace(work, params=params, remote_kv=remote)
