"""The proxy finds the chunk with which a client has a whole answer."""

import gzip
import zlib

import pytest

from refold.adapters.proxy.answer_end import AnswerEnd
from refold.adapters.proxy.protocols import anthropic, openai_chat, openai_responses

DELTA = b'event: delta\ndata: {"text": "event: message_stop\\n\\n"}\n\n'
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'


def last_chunk(end: AnswerEnd, chunks: list[bytes]) -> int | None:
    """Return the number of the chunk that ends an answer; None if no chunk does."""
    for number, chunk in enumerate(chunks):
        if end.is_in(chunk):
            return number
    return None


@pytest.mark.parametrize("cut", range(len(DELTA + STOP)))
def test_an_answer_ends_with_the_blank_line_after_its_last_event(cut: int) -> None:
    body = DELTA + STOP
    end = AnswerEnd({}, anthropic.LAST_LINES)

    assert last_chunk(end, [body[:cut], body[cut:]]) == 1


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (openai_chat.LAST_LINES, b"data: [DONE]\n\n"),
        (openai_chat.LAST_LINES, b"data:[DONE]\r\n\r\n"),
        (openai_responses.LAST_LINES, b"event: response.completed\ndata: {}\n\n"),
        (openai_responses.LAST_LINES, b"event: response.failed\ndata: {}\n\n"),
        (openai_responses.LAST_LINES, b"event:response.incomplete\ndata: {}\n\n"),
    ],
)
def test_each_protocol_has_its_last_events(
    lines: tuple[bytes, ...], last: bytes
) -> None:
    assert last_chunk(AnswerEnd({}, lines), [DELTA, last, b""]) == 1


def test_the_length_of_an_answer_decides() -> None:
    end = AnswerEnd({"content-length": str(len(STOP) + 3)}, anthropic.LAST_LINES)

    assert last_chunk(end, [STOP, b"12", b"3", b""]) == 2


@pytest.mark.parametrize("length", ["", "-1", "1,1", "9" * 5_000])
def test_a_length_that_is_no_number_decides_nothing(length: str) -> None:
    end = AnswerEnd({"content-length": length}, anthropic.LAST_LINES)

    assert last_chunk(end, [DELTA, STOP]) == 1


def test_a_compressed_stream_is_read() -> None:
    stream = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    chunks = [
        stream.compress(part) + stream.flush(zlib.Z_SYNC_FLUSH)
        for part in (DELTA, STOP)
    ]
    end = AnswerEnd({"content-encoding": "gzip"}, anthropic.LAST_LINES)

    assert last_chunk(end, [*chunks, stream.flush()]) == 1


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", STOP),
        ("gzip", STOP),
        ("gzip, gzip", gzip.compress(gzip.compress(STOP))),
        ("gzip", gzip.compress(bytes(8 << 20) + STOP)),
    ],
)
def test_a_stream_that_cannot_be_read_ends_with_its_connection(
    encoding: str, body: bytes
) -> None:
    end = AnswerEnd({"content-encoding": encoding}, anthropic.LAST_LINES)

    assert last_chunk(end, [body, STOP]) is None
