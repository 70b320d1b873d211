"""Finds the chunk with which a client has a whole answer.

A client may send its next request as soon as it has this chunk, although the provider
has not closed the answer.  That request repeats the answer, so the answer is recorded
before the client gets the chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from refold.adapters.proxy import encodings

# Longer than every line with which a protocol ends its streams.
_TAIL: Final = 64  # bytes
_MOST_DIGITS: Final = 20  # of a length
_MOST_DECODED: Final = 1 << 20  # bytes of one chunk


class AnswerEnd:
    """Looks at the chunks of one answer, in their order.

    The end of an answer without a length, whose stream has no last line, is the end of
    its connection.  No chunk tells it.

    headers:    of the answer, in lower case.
    last_lines: the lines of server-sent events with which a stream of the protocol
                ends, such as ``event: message_stop``.
    """

    def __init__(self, headers: Mapping[str, str], last_lines: Sequence[bytes]) -> None:
        length = headers.get("content-length", "")
        is_length = length.isdecimal() and len(length) < _MOST_DIGITS
        self._bytes_left = int(length) if is_length else None
        self._last_lines = [b"\n" + line for line in last_lines]
        # Some servers write no space behind the colon.
        self._last_lines += [line.replace(b": ", b":") for line in self._last_lines]
        self._decode = _decoder(headers.get("content-encoding", ""))
        self._tail = b"\n"
        self._has_last_line = False

    def is_in(self, chunk: bytes) -> bool:
        """Whether the client has the whole answer with this chunk."""
        if self._bytes_left is not None:
            self._bytes_left -= len(chunk)
            return self._bytes_left == 0
        if not self._last_lines:
            return False
        try:
            text = self._decode(chunk)
        except encodings.NotDecodable:
            self._last_lines = []
            return False
        window = self._tail + text
        self._tail = window[-_TAIL:]
        if not self._has_last_line:
            # A line break within JSON is escaped, so no content looks like such a line.
            self._has_last_line = any(line in window for line in self._last_lines)
        return self._has_last_line and window.endswith((b"\n\n", b"\n\r\n"))


def _decoder(content_encoding: str) -> Callable[[bytes], bytes]:
    """Return a function that decodes the next chunk of a body.

    It raises NotDecodable for another encoding than gzip.
    """
    names = encodings.names(content_encoding)
    if not names:
        return bytes
    gzip = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def inflated(chunk: bytes) -> bytes:
        if names not in (["gzip"], ["x-gzip"]):
            raise encodings.NotDecodable(content_encoding, "it is not read in pieces")
        try:
            text = gzip.decompress(chunk, _MOST_DECODED)
        except zlib.error:
            raise encodings.NotDecodable(content_encoding, "it is damaged") from None
        if gzip.unconsumed_tail:
            raise encodings.NotDecodable(content_encoding, "a piece is too large")
        return text

    return inflated
