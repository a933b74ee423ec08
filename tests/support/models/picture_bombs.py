# SPDX-License-Identifier: Apache-2.0
"""Files of images that are made to exhaust whoever decodes them: small, and large by what they say."""

import io
import struct
import zlib

from PIL import Image

PNG_HEAD = b"\x89PNG\r\n\x1a\n"
ZLIB_HEAD, DEFLATE_END = b"\x78\xda", b"\x03\x00"
MIB = 1 << 20
ADLER_MODULUS = 65521


def chunk(kind: bytes, data: bytes) -> bytes:
    part = kind + data
    return struct.pack(">I", len(data)) + part + struct.pack(">I", zlib.crc32(part))


def packed_zeros(mib: int) -> bytes:
    """Return so many MiB of zeros as zlib packs them, without packing more than one of them."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    one = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = (mib * MIB % ADLER_MODULUS) << 16 | 1
    return ZLIB_HEAD + one * mib + DEFLATE_END + struct.pack(">I", checksum)


def png(width: int, height: int, *more: bytes, pixels: bytes = bytes(1 << 16), packed: bytes = b"") -> bytes:
    """Return a PNG that says this size, with more chunks before its few pixels, which may be packed already."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return PNG_HEAD + head + b"".join(more) + chunk(b"IDAT", packed or zlib.compress(pixels)) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """Return a JPEG of 8 by 8 pixels that says this size."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 200, 30)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    # The frame's header has marker, length and precision before its size.
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def frames(form: str, count: int) -> bytes:
    """Return a file of so many images, which follow each other."""
    file = io.BytesIO()
    images = [Image.new("RGB", (32, 32), (index, 200, 30)) for index in range(count)]
    images[0].save(file, form, save_all=True, append_images=images[1:])
    return file.getvalue()


def packed_text(kind: bytes, mib: int) -> bytes:
    """Return a chunk beside the pixels whose text or profile has so many MiB when it is unpacked."""
    inside = {b"zTXt": b"\0", b"iCCP": b"\0", b"iTXt": b"\1\0\0\0"}[kind]
    return chunk(kind, b"name\0" + inside + packed_zeros(mib))
