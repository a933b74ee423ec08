# SPDX-License-Identifier: Apache-2.0
"""The variables that Kubernetes sets for Services never become an option, nor a reason not to start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.options import OPTIONS, LaunchOptions, flag_name, read_options
from pontil.launcher.options.sources import service_links, variable_name

VARIABLES = [variable_name(flag_name(each)) for each in OPTIONS]
# The name of a Service is a DNS label (RFC 1035), and so are those of its ports.
LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
REST = LABEL | st.sampled_from([flag_name(each) for each in OPTIONS])


def links(service: str, port: int = 8000, protocol: str = "tcp", port_name: str = "http") -> dict[str, str]:
    """Return the variables as kubelet's FromServices makes them (pkg/kubelet/envvars)."""
    name, number = service.upper().replace("-", "_"), str(port)
    first = f"{name}_PORT_{port}_{protocol.upper()}"
    return {
        f"{name}_SERVICE_HOST": "10.96.0.7",
        f"{name}_SERVICE_PORT": number,
        f"{name}_SERVICE_PORT_{port_name.upper().replace('-', '_')}": number,
        f"{name}_PORT": f"{protocol}://10.96.0.7:{port}",
        first: f"{protocol}://10.96.0.7:{port}",
        f"{first}_PROTO": protocol,
        f"{first}_PORT": number,
        f"{first}_ADDR": "10.96.0.7",
    }


def test_a_service_called_pontil_hinders_no_launch() -> None:  # D9
    made = links("pontil") | links("pontil-proxy", 7000) | links("kubernetes", 443)
    assert read_options({}, None, made) == LaunchOptions()
    assert read_options({}, None, made | {"PONTIL_MAX_NUM_SEQS": "3"}).max_num_seqs == 3
    six = {**made, "PONTIL_PORT": "tcp://[fd00::7]:8000"}
    assert read_options({}, None, six) == LaunchOptions()


@given(REST, st.integers(1, 65535), st.sampled_from(["tcp", "udp", "sctp"]), LABEL)
def test_no_name_of_a_service_is_an_option(rest: str, port: int, protocol: str, port_name: str) -> None:  # D9
    made = links(f"pontil-{rest}", port, protocol, port_name)
    assert service_links(made) == set(made) and not set(made) & set(VARIABLES)
    assert read_options({}, None, made) == LaunchOptions()


def test_options_keep_their_names_beside_a_service() -> None:
    """Only the option `port` is named like a link, and its value tells them apart."""
    for option in VARIABLES:
        links_then = service_links({**links("pontil"), option: "7"})
        assert option not in links_then, option
    chosen = links("pontil") | {"PONTIL_PORT": "9001"}
    assert read_options({}, None, chosen).port == 9001


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PONTIL_PORT": "tcp://10.96.0.7:8000"}, "PONTIL_PORT must be a whole number"),
        ({"PONTIL_SERVICE_HOST": "10.96.0.7"}, "unknown PONTIL_SERVICE_HOST"),
        (links("pontil") | {"PONTIL_PORT": "many"}, "PONTIL_PORT must be a whole number"),
        (links("pontil") | {"PONTIL_PROT": "9001"}, "did you mean 'PONTIL_PORT'?"),
    ],
)
def test_what_is_somebodys_own_is_checked_as_ever(variables: dict[str, str], words: str) -> None:  # D9
    with pytest.raises(OptionError) as refusal:
        read_options({}, None, variables)
    assert words in refusal.value.message
