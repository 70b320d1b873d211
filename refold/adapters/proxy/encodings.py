"""Content encodings of HTTP that the proxy can decode: gzip, deflate, and zstd.

The bytes that a client gets stay as the provider sent them.  Only the copy that is
recorded is decoded.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from refold.domain.errors import RefoldError

DECODABLE: Final = ("gzip", "x-gzip", "deflate", "zstd", "identity")
MOST_BYTES: Final = 256 << 20
"""The most bytes that a body may decode to: a small body can decode to any size."""

_CHUNK: Final = 1 << 20
# A piece of this size decodes to at most 32 MiB: the smallest block has 4 bytes and
# decodes to 128 KiB.
_ZSTD_PIECE: Final = 1 << 10
_ZSTD_WINDOW: Final = 128 << 20  # as browsers and other clients limit it


class NotDecodable(RefoldError):
    """A body cannot be decoded.  The message names its encoding and the reason."""

    def __init__(self, encoding: str, reason: str) -> None:
        super().__init__(
            f"a body with the encoding {encoding} was not decoded: {reason}"
        )
        self.encoding = encoding
        self.reason = reason


def names(header: str) -> list[str]:
    """Return the encodings that a Content-Encoding names, in the order of encoding."""
    listed = [name.strip().lower() for name in header.split(",")]
    return [name for name in listed if name not in ("", "identity")]


def decoded(
    body: bytes, header: str, *, partial: bool = False, most: int = MOST_BYTES
) -> bytes:
    """Return a body without its content encodings.

    header:  the value of Content-Encoding.
    partial: whether the body may end early.  Then the result does, too.
    most:    the most bytes of the result.

    Raises NotDecodable.
    """
    for name in reversed(names(header)):
        body = _without(name, body, partial=partial, most=most)
    return body


def _without(name: str, body: bytes, *, partial: bool, most: int) -> bytes:
    """Return a body without one encoding.  Raises NotDecodable."""
    match name:
        case "gzip" | "x-gzip":
            return _inflated(name, body, 16 + zlib.MAX_WBITS, partial, most)
        case "deflate":
            wbits = zlib.MAX_WBITS if _has_zlib_header(body) else -zlib.MAX_WBITS
            return _inflated(name, body, wbits, partial, most)
        case "zstd":
            return _zstd(body, partial, most)
    raise NotDecodable(repr(name), "there is no decoder for it")


def _has_zlib_header(body: bytes) -> bool:
    """Whether a body in ``deflate`` has zlib's header, as the standard says.

    Some servers send the bare stream.
    """
    return body[:1] == b"\x78" and int.from_bytes(body[:2], "big") % 31 == 0


def _inflated(name: str, body: bytes, wbits: int, partial: bool, most: int) -> bytes:
    """Return the content of the members of a gzip or zlib stream."""
    content = bytearray()
    rest = body
    while rest:
        decoder = zlib.decompressobj(wbits)
        while not decoder.eof:
            try:
                chunk = decoder.decompress(rest, _CHUNK)
            except zlib.error:
                raise NotDecodable(name, "it is damaged") from None
            content += chunk
            if len(content) > most:
                raise NotDecodable(name, f"it decodes to more than {most:,} bytes")
            rest = decoder.unconsumed_tail
            if not chunk and not rest:
                break
        if not decoder.eof and not partial:
            raise NotDecodable(name, "it ends early")
        rest = decoder.unused_data
    return bytes(content)


def _zstd(body: bytes, partial: bool, most: int) -> bytes:
    """Return the content of the frames of zstd."""
    import zstandard

    frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    content = bytearray()
    decoder: Any = None  # of the current frame
    at = 0
    while at < len(body):
        if decoder is None:
            decoder = frames.decompressobj()
        piece = body[at : at + _ZSTD_PIECE]
        try:
            content += decoder.decompress(piece)
        except zstandard.ZstdError:
            raise NotDecodable("zstd", "it is damaged") from None
        if len(content) > most:
            raise NotDecodable("zstd", f"it decodes to more than {most:,} bytes")
        at += len(piece)
        if decoder.eof:
            at -= len(decoder.unused_data)
            decoder = None
    if decoder is not None and not partial:
        raise NotDecodable("zstd", "it ends early")
    return bytes(content)
