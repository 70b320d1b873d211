"""A recorded body is decoded as clients decode it, and within a limit."""

import gzip
import zlib
from random import Random

import pytest
import zstandard

from refold.adapters.proxy.encodings import NotDecodable, decoded

TEXT = b"data: some words that a model sent\n\n" * 50_000
ODD = Random(0).randbytes(5_000)
RAW_DEFLATE = zlib.compress(TEXT)[2:-4]


def gzipped(content: bytes) -> bytes:
    """Return the content in gzip, without the time, which differs between processes."""
    return gzip.compress(content, mtime=0)


def zstd(content: bytes) -> bytes:
    """Return the content as one frame of zstd."""
    return zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzipped(TEXT)),
        ("X-Gzip", gzipped(TEXT)),
        ("gzip", gzipped(TEXT[:100]) + gzipped(TEXT[100:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", RAW_DEFLATE),
        ("zstd", zstd(TEXT)),
        ("zstd", zstd(TEXT[:100]) + zstd(TEXT[100:])),
        ("gzip, zstd", zstd(gzipped(TEXT))),
    ],
)
def test_a_body_is_decoded(encoding: str, body: bytes) -> None:
    assert decoded(body, encoding) == TEXT


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzipped(ODD)),
        ("deflate", zlib.compress(ODD)),
        ("zstd", zstd(TEXT)),
    ],
)
def test_only_a_partial_body_may_end_early(encoding: str, body: bytes) -> None:
    whole = decoded(body, encoding)

    for length in (len(body) // 3, len(body) // 2, len(body) - 1):
        assert whole.startswith(decoded(body[:length], encoding, partial=True))
        with pytest.raises(NotDecodable, match="it ends early"):
            decoded(body[:length], encoding)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzipped(bytes(64 << 20))),
        ("deflate", zlib.compress(bytes(64 << 20))),
        ("zstd", zstd(bytes(64 << 20))),
    ],
)
def test_a_body_that_decodes_to_too_much_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(NotDecodable, match="more than 1,048,576 bytes"):
        decoded(body, encoding, most=1 << 20)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_damaged_body_is_refused(encoding: str) -> None:
    with pytest.raises(NotDecodable, match="it is damaged"):
        decoded(b"these are no compressed bytes", encoding)


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(NotDecodable, match="no decoder"):
        decoded(b"", "br, gzip")
