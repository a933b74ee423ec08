# SPDX-License-Identifier: Apache-2.0
"""With https a host proves its name, although the connection goes to an address."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from picture_origin import LOOPBACK, PNG, KnownNames, PictureOrigin, file, moved, on_each_loop

from pontil.runtime.config.web_address import MediaHosts, web_address
from pontil.runtime.stages.media.fetch_failed import FetchFailed
from pontil.runtime.stages.media.web_fetcher import WebFetcher

NAME, OTHER = "images.example", "other.example"


def certificate(folder: Path, name: str) -> Path:
    """Write a key and a certificate for this name, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_name_is_proved_by_its_certificate(tmp_path: Path) -> None:
    path = certificate(tmp_path, NAME)
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(path)
    names_asked = list[str | None]()
    shown.sni_callback = lambda connection, name, context: names_asked.append(name)

    async def script() -> None:
        names_asked.clear()
        async with PictureOrigin().listening(shown) as origin, PictureOrigin().listening() as plain:
            ports = origin.port, plain.port
            allowed = MediaHosts([f"{name}:{port}" for name in (NAME, OTHER, LOOPBACK) for port in ports])
            names = {NAME: [LOOPBACK], OTHER: [LOOPBACK]}
            trusted = WebFetcher(allowed, network=KnownNames(names, ssl.create_default_context(cafile=path)))
            origin.replies |= {"/": file(), "/down": moved(f"http://{NAME}:{plain.port}/")}
            url = f"https://{NAME}:{origin.port}/"
            assert await trusted.fetch(web_address(url), lambda size: None) == PNG
            assert names_asked == [NAME]
            unknown = WebFetcher(allowed, network=KnownNames(names))
            for fetcher, wrong, says in (
                (trusted, f"https://{OTHER}:{origin.port}/", "whose TLS is not trusted"),
                (trusted, f"https://{LOOPBACK}:{origin.port}/", "whose TLS is not trusted"),
                (unknown, url, "whose TLS is not trusted"),
                (trusted, f"{url}down", "from https to http"),
                (trusted, f"http://{NAME}:{origin.port}/", "ended before|no HTTP"),
            ):
                with pytest.raises(FetchFailed, match=says):
                    await fetcher.fetch(web_address(wrong), lambda size: None)
            assert len(origin.asked) == 2 and not plain.asked, "nothing is asked of a host that did not prove its name"

    on_each_loop(script)
