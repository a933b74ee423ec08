# SPDX-License-Identifier: Apache-2.0
"""Images in messages: bytes of a PNG or JPEG file in a data URL, or the address of one, checked as far as costs
nothing."""

import base64
import binascii
import re
from dataclasses import dataclass, field

from pontil.http.schema.reader import Fields
from pontil.runtime.config.web_address import WebAddress, web_address
from pontil.runtime.errors import RequestError

IMAGE_URL = "image_url"
# Bytes of the largest file that is decoded.
MOST_IMAGE_BYTES = 20 << 20
DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]{1,40})?(?:;[a-z0-9=._-]{1,40})*;base64,", re.IGNORECASE)
MAGICS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
GIVE = 'give {"url": "data:image/png;base64,…"}'


@dataclass(frozen=True, slots=True)
class Picture:
    """The bytes of a file of an image. Errors call it by its `place` in the request."""

    data: bytes = field(repr=False)
    place: str


@dataclass(frozen=True, slots=True)
class LinkedPicture:
    """An image at an address on the network, which is fetched, if at all, once nothing else refuses its request."""

    address: WebAddress
    place: str


def read_picture(fields: Fields) -> Picture | LinkedPicture:
    """Read a content part of the type image_url."""
    image = fields.required_object(IMAGE_URL, f"is missing: {GIVE}")
    picture = linked_picture(image, "url", GIVE)
    image.neutral({"detail": ("auto",)})
    fields.ignore_rest()
    return picture


def linked_picture(fields: Fields, name: str, give: str) -> Picture | LinkedPicture:
    """Read an image from the data URL, or the address on the network, of this name. Errors say what to `give`."""
    url = fields.required_text(name)
    head = DATA_URL.match(url)
    if head is None:
        if re.match(r"https?:", url, re.IGNORECASE):
            try:
                return LinkedPicture(web_address(url), f"{fields.path}{name}")
            except ValueError as error:
                raise fields.wrong(name, str(error)) from None
        raise fields.wrong(name, f"is no data URL in base64: {give}")
    return encoded_picture(fields, name, url[head.end() :])


def encoded_picture(fields: Fields, name: str, encoded: str) -> Picture:
    """Return the image of this base64, which errors call by this name."""
    try:
        data = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise fields.wrong(name, "must be base64 without line ends: encode the bytes of a PNG or JPEG file") from None
    place = f"{fields.path}{name}"
    check_picture(data, place)
    return Picture(data, place)


def check_picture(data: bytes, place: str) -> None:
    """Raise RequestError for what is no image of a form that is read."""
    says = None
    if not any(data.startswith(magic) for magic in MAGICS):
        says = f"{place} is no PNG or JPEG file: convert it to one first"
    elif len(data) > MOST_IMAGE_BYTES:
        says = f"{place} has {len(data)} bytes, and at most {MOST_IMAGE_BYTES} are read: send a smaller image"
    if says is not None:
        raise RequestError(says, param=place, code="invalid_image")
