# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.device_list import DeviceItem, RankDevice
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import OPTIONS, LaunchOptions, read_options
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.config.readers import size
from pontil.runtime.config.worker_config import Deadlines, WorkerConfig


def config_file(folder: Path, text: str) -> Path:
    (folder / "pontil.toml").write_text(text)
    return folder / "pontil.toml"


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = config_file(tmp_path, 'port = 9000\nhost = "::1"\nshare-devices = true\ndecode = ["cpu:0", "cpu:1"]\n')
    options = read_options({"port": "9001", "host": None}, path)
    assert (options.port, options.host, options.share_devices) == (9001, "::1", True)
    assert options.decode == tuple(DeviceItem((RankDevice(cores=(core,)),)) for core in (0, 1))
    assert options.max_num_seqs == LaunchOptions().max_num_seqs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-sequences = 3", "unknown key 'max-num-sequences': did you mean 'max-num-seqs'?"),  # G1, D9
        ("max_num_seqs = 3", "did you mean 'max-num-seqs'?"),
        ("zzzzzz = 1", "--help"),
        ("port = true", "port in pontil.toml must be a whole number from 0 to 65535, not True"),
        ("port = 8000.0", "whole number"),
        ("share-devices = 1", "true or false"),
        ("port = ", "not valid TOML"),
        ("[launch]\nport = 1", "unknown key 'launch'"),
    ],
)
def test_a_faulty_file_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(OptionError) as refusal:
        read_options({}, config_file(tmp_path, text))
    assert words in refusal.value.message and refusal.value.exit_code == 2


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_options({}, tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"), ("port", "-1"), ("port", "8e3"), ("port", ""), ("port", "٣"), ("role", "both"),
        ("dtype", "int8"), ("block_size", "0"), ("kv_cache_memory", "2 apples"), ("kv_cache_memory", "0"),
        ("drain_timeout", "inf"), ("drain_timeout", "-1"), ("drain_timeout", "nan"), ("prefill", "gpu"),
        ("control", "tcp://0.0.0.0:1"), ("control", "tcp://127.0.0.1:0"), ("join", "ipc://relative"), ("host", ""),
        ("model", "two\nlines"), ("kv_connector", "pigeon"), ("log_level", "loud"), ("allowed_hosts", "a:80"),
        ("allowed_hosts", "a,,b"), ("allowed_hosts", ""), ("max_body_size", "0"),
        ("cors_origin", "null"), ("cors_origin", "app.example"), ("cors_origin", "https://a/b"), ("cors_origin", ""),
        ("cors_origin", "https://a,,*"),
        ("allowed_media_domains", ""), ("allowed_media_domains", "a,,b"), ("allowed_media_domains", "https://a"),
        ("allowed_media_domains", "*"), ("allowed_media_domains", "localhost"), ("allowed_media_domains", "0.0.0.0:80"),
        ("kv_tier", "8GiB"), ("kv_tier", "memory"), ("kv_tier", "memory:/x:1GiB"), ("kv_tier", "disk:1GiB"),
        ("kv_tier", "disk:kv:1GiB"), ("kv_tier", "memory:0"), ("kv_tier", "disk:/kv:lots"), ("kv_tier", "tape:/x:1GiB"),
        ("kv_tier", "memory:1GiB,memory:2GiB"), ("kv_tier", "disk:/a:1GiB,disk:/b:1GiB"), ("kv_tier", ","),
        ("kv_tier", "disk:/a\nb:1GiB"), ("kv_tier", ""),
        ("first_byte_timeout", "0"), ("kv_lease", "-1"), ("kv_stall_timeout", "soon"),
        ("otlp_traces_endpoint", "127.0.0.1:4318"), ("otlp_traces_endpoint", "grpc://127.0.0.1:4317"),
        ("otlp_traces_endpoint", "http://"), ("otlp_traces_endpoint", "http://a:b@c/"),
        ("otlp_traces_endpoint", "http://a?key=b"), ("otlp_traces_endpoint", "http://a:70000"),
        ("otlp_traces_endpoint", "http://[::1"), ("otlp_traces_endpoint", "http://a b"),
        ("otlp_traces_sample_rate", "1.1"),
    ],
)  # fmt: skip
def test_each_value_is_checked_and_named(name: str, value: str) -> None:
    with pytest.raises(OptionError) as refusal:
        read_options({name: value})
    assert refusal.value.message.startswith(f"--{name.replace('_', '-')} m") and refusal.value.message.endswith(".")


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("512MB", 512_000_000), ("1.5 KiB", 1536), ("4096", 4096), ("1gb", 10**9), (4096, 4096)],
)
def test_sizes_are_read_in_bytes(text: Any, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("tcp://fd00::1:2:7000", "tcp://[fd00::1:2]:7000"), ("tcp://[fd00::1]:7000", "tcp://[fd00::1]:7000"),
        ("tcp://10.0.0.1:7000", "tcp://10.0.0.1:7000"), ("tcp://::1:7000", "tcp://[::1]:7000"),
    ],
)  # fmt: skip
def test_an_endpoint_has_brackets_around_an_ipv6_address(given: str, read: str) -> None:
    assert read_options({"control": given}).control == read
    for wrong in ("tcp://fd00::1", "tcp://fd00::1::7000", "tcp://:::7000", "tcp://fd00::1:70000"):
        with pytest.raises(OptionError):
            read_options({"control": wrong})


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://collector/api/otlp/v1/traces", "https://collector/api/otlp/v1/traces"),
        ("http://[::1]:4318/x/", "http://[::1]:4318/x/"),
    ],
)
def test_a_collector_without_a_path_gets_that_of_traces(given: str, url: str) -> None:
    assert read_options({"otlp_traces_endpoint": given}).otlp_traces_endpoint == url


def test_names_of_hosts_are_a_list(tmp_path: Path) -> None:
    path = config_file(tmp_path, 'allowed-hosts = ["llm.example", "::1"]\n')
    assert read_options({}, path).allowed_hosts == ("llm.example", "::1")
    assert read_options({"allowed_hosts": "a.example, 10.0.0.7,*"}, path).allowed_hosts == (
        "a.example",
        "10.0.0.7",
        "*",
    )


def test_defaults_are_what_the_processes_would_choose_themselves() -> None:
    for config in (WorkerConfig, ProxyConfig, Deadlines):
        own = {each.name: each.default for each in fields(config)}
        for each in OPTIONS:
            if each.name in own and each.name not in ("model", "served_model_name", "control", "role", "host", "port"):
                assert each.default == own[each.name], each.name


def test_the_environment_decides_where_things_are_kept(tmp_path: Path) -> None:
    def of(**variables: str) -> LaunchEnvironment:
        return LaunchEnvironment(variables, 7)

    assert of(PONTIL_CACHE="/a", XDG_CACHE_HOME="/b").cache_directory == Path("/a")
    assert of(XDG_CACHE_HOME="/b").cache_directory == Path("/b/pontil")
    assert of().cache_directory == Path.home() / ".cache" / "pontil"
    assert of(XDG_RUNTIME_DIR=str(tmp_path)).run_base == tmp_path / "pontil"
    assert of(XDG_RUNTIME_DIR="/nowhere").run_base == of().run_base == Path("/tmp/pontil-7")


def test_threads_are_counted_for_those_that_pin_cores() -> None:
    assert LaunchEnvironment({"A": "b"}, 0).for_child(3)["OMP_NUM_THREADS"] == "3"
    assert LaunchEnvironment({"MALLOC_TRIM_THRESHOLD_": "7"}, 0).for_child(3)["MALLOC_TRIM_THRESHOLD_"] == "7"
    assert LaunchEnvironment({"A": "b"}, 0).for_child(3)["MALLOC_MMAP_THRESHOLD_"] == "33554432"
    assert LaunchEnvironment({"UCX_LOG_LEVEL": "info"}, 0).for_child(3)["UCX_LOG_LEVEL"] == "info"
    assert LaunchEnvironment({"A": "b"}, 0).for_child(None) == {"A": "b", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), ("2s", 2.0), ("2", 2.0), ("500ms", 0.5), ("0.25 s", 0.25), (1.5, 1.5), (3, 3.0)],
)
def test_slow_requests_are_logged_from_a_time_on(given: Any, seconds: float | None) -> None:
    assert read_options({"slow_log": given}).slow_log == seconds


@pytest.mark.parametrize("given", ["0", "0s", "-1", "2m", "2ss", "ms", "", "1e3", "nan", "inf", "٣", "2000000", True])
def test_a_time_that_is_none_is_refused_in_a_sentence(given: Any) -> None:
    with pytest.raises(OptionError, match="a time like 2s, 500ms or a number of seconds"):
        read_options({"slow_log": given})
