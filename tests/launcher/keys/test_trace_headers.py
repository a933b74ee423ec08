# SPDX-License-Identifier: Apache-2.0
"""Headers for the collector of traces: from a file or the environment, and never shown."""

from pathlib import Path

import pytest

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.keys.trace_headers import Headers, read_trace_headers
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.topology import plan_proxy
from pontil.runtime.config.proxy_config import proxy_config

HERE, THERE, SAFE = "http://127.0.0.1:4318/v1/traces", "http://collector:4318/v1/traces", "https://collector/v1/traces"
BOTH = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=s3cret%20s,X-Team=a", "OTEL_EXPORTER_OTLP_HEADERS": "other=1"}


def read(path: Path, text: str | None, variables: dict[str, str] | None = None, endpoint: str | None = HERE) -> Headers:
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    named = None if text is None else str(path)
    return read_trace_headers(LaunchOptions(otlp_traces_endpoint=endpoint, otlp_headers=named), variables or {})


def test_a_file_has_one_on_each_line(tmp_path: Path) -> None:
    text = "# ours\n\nAuthorization: Bearer a:b=c\nx-team:  core \n"
    assert read(tmp_path / "h", text) == (("authorization", "Bearer a:b=c"), ("x-team", "core"))


def test_the_variable_for_traces_wins_over_the_general_one(tmp_path: Path) -> None:
    assert read(tmp_path, None, BOTH) == (("api-key", "s3cret s"), ("x-team", "a"))
    assert read(tmp_path, None, {"OTEL_EXPORTER_OTLP_HEADERS": "other=1,"}) == (("other", "1"),)
    assert read(tmp_path / "h", "API-KEY: mine\n", BOTH) == (("api-key", "mine"), ("x-team", "a"))
    assert read(tmp_path, None, BOTH, None) == ()


@pytest.mark.parametrize("text", ["s3cret", ": s3cret", "na me: s3cret", "name:", "name: s3cret\x00", "näme: s3cret"])
def test_a_malformed_one_is_refused_by_its_place(text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as refusal:
        read(tmp_path / "h", f"ok: 1\n{text}\n")
    assert refusal.value.message.startswith("Line 2 of ") and "s3cret" not in refusal.value.message


def test_one_of_the_environment_may_not_smuggle_another(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Header 2 of OTEL_EXPORTER_OTLP_HEADERS is no header"):
        read(tmp_path, None, {"OTEL_EXPORTER_OTLP_HEADERS": "a=1,b=x%0d%0ahost: y"})


def test_others_must_not_be_able_to_read_the_file(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("a: b")
    (tmp_path / "h").chmod(0o644)
    with pytest.raises(OptionError, match="open to other users"):
        read_trace_headers(LaunchOptions(otlp_traces_endpoint=HERE, otlp_headers=str(tmp_path / "h")), {})
    with pytest.raises(OptionError, match="larger than a file of headers can be"):
        read(tmp_path / "h", "a: b\n" * 9000)


def test_they_do_not_cross_a_network_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="in the clear: use https"):
        read(tmp_path, None, BOTH, THERE)
    assert read(tmp_path, None, BOTH, SAFE) and read(tmp_path, None, {}, THERE) == ()


def test_only_the_proxy_gets_them() -> None:
    environment = LaunchEnvironment({**BOTH, "OTEL_SERVICE_NAME": "mine"}, 0)
    assert environment.for_child(2)["OTEL_SERVICE_NAME"] == "mine" and not set(BOTH) & set(environment.for_child(2))
    options = LaunchOptions(otlp_traces_endpoint=HERE)
    child = plan_proxy([options], HostDevices((0,), 1, 0), Path("/run"), "ipc:///run/c")
    config = proxy_config(child.configured(trace_headers=[["api-key", "s3cret"]], cache_dir=None).config)
    assert config.trace_headers == (("api-key", "s3cret"),) and "s3cret" not in repr(config)
    assert (config.otlp_traces_endpoint, config.otlp_traces_sample_rate) == (HERE, 1.0)
