"""Images and PDF files of every format, with random pixels and chosen metadata."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from random import Random

WIDTH = 640
HEIGHT = 480
# The number of pixel bytes for a file of about 48 kB in base64.
PIXELS = 36_000


def encoded(data: bytes) -> str:
    """Return the base64 of a file."""
    return b64encode(data).decode()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def png(random: Random, metadata: bytes = b"", size: int = PIXELS) -> bytes:
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    pixels = zlib.compress(random.randbytes(size), 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + metadata
        + png_chunk(b"IDAT", pixels)
        + png_chunk(b"IEND", b"")
    )


def jpeg_segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg(random: Random, metadata: bytes = b"", size: int = PIXELS) -> bytes:
    frame = struct.pack(">BHHB", 8, HEIGHT, WIDTH, 1) + b"\x01\x11\x00"
    scan = random.randbytes(size).replace(b"\xff", b"\xff\x00")
    return (
        b"\xff\xd8"
        + jpeg_segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
        + metadata
        + jpeg_segment(0xC0, frame)
        + jpeg_segment(0xDA, b"\1\1\0\0\x3f\0")
        + scan
        + b"\xff\xd9"
    )


def gif_blocks(data: bytes) -> bytes:
    blocks = [data[at : at + 255] for at in range(0, len(data), 255)]
    return b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"


def gif(random: Random, metadata: bytes = b"", size: int = PIXELS) -> bytes:
    screen = struct.pack("<HHBBB", WIDTH, HEIGHT, 0, 0, 0)
    image = struct.pack("<BHHHHBB", 0x2C, 0, 0, WIDTH, HEIGHT, 0, 8)
    pixels = gif_blocks(random.randbytes(size))
    return b"GIF89a" + screen + metadata + image + pixels + b";"


def webp_chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def webp(random: Random, metadata: bytes = b"", size: int = PIXELS) -> bytes:
    bits = (WIDTH - 1) | (HEIGHT - 1) << 14
    pixels = b"\x2f" + struct.pack("<I", bits) + random.randbytes(size)
    body = b"WEBP" + webp_chunk(b"VP8L", pixels) + metadata
    return b"RIFF" + struct.pack("<I", len(body)) + body


def pdf_object(number: int, body: bytes) -> bytes:
    return b"%d 0 obj\n%s\nendobj\n" % (number, body)


def pdf_stream(number: int, fields: bytes, data: bytes) -> bytes:
    head = b"<<%s /Length %d>>\nstream\n" % (fields, len(data))
    return pdf_object(number, head + data + b"\nendstream")


def pdf(random: Random, metadata: bytes = b"", size: int = PIXELS) -> bytes:
    content = zlib.compress(random.randbytes(size), 0)
    return (
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
        + pdf_object(1, b"<</Type /Catalog /Pages 2 0 R>>")
        + pdf_object(2, b"<</Type /Pages /Kids [3 0 R 4 0 R] /Count 2>>")
        + pdf_object(3, b"<</Type /Page /MediaBox [0 0 612 792]>>")
        + pdf_object(4, b"<</Type /Page /MediaBox [0 0 612 792]>>")
        + pdf_stream(5, b"/Filter /FlateDecode", content)
        + metadata
        + b"xref\n0 2\n0000000000 65535 f \n0000000016 00000 n \n"
        + b"trailer\n<</Size 6 /Root 1 0 R>>\nstartxref\n1234\n%%EOF\n"
    )


MAKERS: dict[str, Callable[..., bytes]] = {
    "image/png": png,
    "image/jpeg": jpeg,
    "image/gif": gif,
    "image/webp": webp,
    "application/pdf": pdf,
}
