# SPDX-License-Identifier: Apache-2.0
"""The configuration of a proxy that is ready without a self-test."""

from typing import Any

from pontil.runtime.config.proxy_config import ProxyConfig


def bare_config(control: str = "", model: str = "tiny", version: str = "0", **options: Any) -> ProxyConfig:
    given = {"port": 0, "self_test": False, **options}
    return ProxyConfig(model=model, served_model_name=model, control=control, version=version, **given)
