# SPDX-License-Identifier: Apache-2.0
"""The token goes to the hub's own host only, and addresses that are none are refused."""

import datetime
import ipaddress
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fake_hub import COMMIT, MODEL, FakeHub, HubFault, fake_hub

from pontil.launcher.options.environment import LaunchEnvironment
from pontil.runtime.config.hub_access import PUBLIC, HubAccess
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hub.hub_client import HubClient, next_page
from pontil.runtime.loaders.hub.patience import Patience

Pull = Callable[..., tuple[Path, int]]
TOKEN = "hf_secret"


def certificate(folder: Path) -> Path:
    """Write a key and its certificate for this host, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(key.private_bytes(*plain) + made.public_bytes(serialization.Encoding.PEM))
    return path


def redirect(place: str, url: str) -> HubFault:
    path = f"/{MODEL}/resolve/{COMMIT}/{place}"
    return HubFault(status=302, headers={"Location": f"{url}{path}"}, where=path)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_files_of_other_hosts_come_by_https_and_without_the_token(
    hub: FakeHub, pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    file = certificate(tmp_path)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with fake_hub(hub.files, file) as other:
        hub.faults = [redirect("model.safetensors", other.url)]
        if not is_trusted:
            with pytest.raises(ModelError, match="a certificate that is not trusted"):
                pull(token=TOKEN)
            return
        path, _ = pull(token=TOKEN)
        assert (path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
        assert [name for name, _ in other.asked_files()] == ["model.safetensors"]
        assert all("authorization" not in headers for _, headers in other.asked)
    assert {headers.get("authorization") for _, headers in hub.asked} == {f"Bearer {TOKEN}"}


def test_a_redirect_within_the_hub_keeps_the_token(hub: FakeHub, pull: Pull) -> None:
    hub.faults = [redirect("model.safetensors", "")]
    pull(token=TOKEN)
    assert {headers.get("authorization") for _, headers in hub.asked} == {f"Bearer {TOKEN}"}
    assert len(hub.asked_files()) == 4


@pytest.mark.parametrize(
    ("endpoint", "token", "says"),
    [
        ("http://10.0.0.7", TOKEN, "would travel readably by http"),
        ("http://hub.example", TOKEN, "would travel readably by http"),
        (PUBLIC.endpoint, "two words", "is no token"),
        (PUBLIC.endpoint, "a\r\nHost: b", "is no token"),
        (PUBLIC.endpoint, "ü", "is no token"),
        ("ftp://hub", None, "HF_ENDPOINT must be"),
        ("hub.example", None, "HF_ENDPOINT must be"),
        ("https://", None, "HF_ENDPOINT must be"),
        ("https://a:b@hub", None, "HF_ENDPOINT must be"),
        ("https://hub:99999", None, "HF_ENDPOINT must be"),
        ("https://[hub", None, "HF_ENDPOINT must be"),
        ("https://hüb", None, "HF_ENDPOINT must be"),
    ],
)
def test_an_endpoint_or_a_token_that_cannot_be_used(endpoint: str, token: str | None, says: str) -> None:
    with pytest.raises(ModelError, match=says) as raised:
        HubClient(HubAccess(endpoint, token), Patience())
    assert token is None or token not in str(raised.value)


def test_no_message_shows_the_token_or_a_signed_address(hub: FakeHub, pull: Pull) -> None:
    hub.faults = [HubFault(status=302, headers={"Location": "http://other.example/x?signature=abc"})]
    with pytest.raises(ModelError) as raised:
        pull(token=TOKEN)
    assert TOKEN not in str(raised.value) and "signature" not in str(raised.value)
    assert "other.example" in str(raised.value) and TOKEN not in repr(HubAccess(token=TOKEN))


def test_an_unreachable_hub(pull: Pull, delays: list[float]) -> None:
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9 cannot be reached \(Connection refused\)"):
        pull(endpoint="http://127.0.0.1:9")
    assert delays == [1.0, 2.0]


def test_the_next_page_is_the_one_that_the_header_says() -> None:
    link = '<https://h/a?p=1>; rel="prev", </b?p=3>; rel="next"'
    assert next_page("https://h/x", link) == "https://h/b?p=3" and next_page("https://h/x", "") is None


def test_the_environment_decides() -> None:
    set_there = {"HF_ENDPOINT": "https://h", "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}
    assert LaunchEnvironment(set_there, 0).hub_access == HubAccess("https://h", TOKEN, True)
    assert LaunchEnvironment({"HF_ENDPOINT": "", "HF_TOKEN": "", "HF_HUB_OFFLINE": "0"}, 0).hub_access == PUBLIC
