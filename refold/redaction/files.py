"""Images and PDF files in base64: their metadata is searched, their pixels are not.

A key in base64 letters that stands in a picture by chance is no key, and replacing it
would damage the picture.  A text is a file if it decodes to the container that its
place declares, or, without a declared type, to a container that is valid to its last
byte.  Everything in the file besides pixels and the content of pages is searched, and
so is everything behind its end.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from refold.domain import media
from refold.redaction.types import UNSCANNED
from refold.redaction.values import FILE_BEGINNINGS, Tally

# Below this number of characters, a file with a broken structure is searched as text.
_LEAST_BROKEN: Final = 4096
_URI: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)
_DATA_KEYS: Final = frozenset({"data", "blob", "bytes"})
_TYPE_KEYS: Final = ("media_type", "mimeType", "mime_type", "mediaType")

# Finds values in texts: the type of a value in each, and the tally, or None.
Search = Callable[[Sequence[str]], Sequence[Tally]]


class Verdict(NamedTuple):
    """The result of the search in a file.

    text:  the file to store, unchanged or cleaned; None if it must not be stored.
    tally: the findings in it.
    """

    text: str | None
    tally: Tally


def declared_type(key: str | int, value: Any, around: Any = None) -> str | None:
    """Return the type of the file under ``key`` of ``value``, if the object names it.

    around: the object or array around ``value``.
    """
    if key not in _DATA_KEYS or not isinstance(value, dict):
        return None
    for name in _TYPE_KEYS:
        media_type = media.media_type_of(value.get(name))
        if media_type is not None:
            return media_type
    if isinstance(around, dict):  # {"format": "png", "source": {"bytes": "…"}}
        form = around.get("format")
        for prefix in ("image", "application"):
            media_type = media.media_type_of(f"{prefix}/{form}")
            if media_type is not None:
                return media_type
    return None


def search_file(
    text: str, declared: str | None, search: Search, *, cleans: bool
) -> Verdict | None:
    """Search the file in ``text``; return the verdict, or None without a file.

    declared: the type that the place of the text declares.
    cleans:   whether parts with findings are removed; else such a file is refused.
    """
    start = 0
    uri = _URI.match(text)
    if uri is not None:
        start = uri.end()
        declared = media.media_type_of(uri[1])
        if declared is None:
            return None
    encoded = text[start:]
    if not encoded.startswith(FILE_BEGINNINGS):
        return None
    data = media.decoded(encoded)
    file = media.read(data) if data is not None else None
    if data is None or file is None:
        return None
    tally = Tally()
    with_findings: list[media.Part] = []
    parts = _searched_parts(encoded, file)
    tallies = search([part.text for part in parts])
    for part, tally_of_part in zip(parts, tallies, strict=True):
        if not part.is_read:
            tally_of_part = Tally({UNSCANNED: 1}, {"file": 1})
        if tally_of_part:
            tally.update(tally_of_part)
            with_findings.append(part)
    if not with_findings:
        return Verdict(text, tally) if _is_exempt(encoded, file, declared) else None
    if not cleans or any(part.replacement is None for part in with_findings):
        return Verdict(None, tally)
    clean = media.without(data, with_findings)
    return Verdict(text[:start] + b64encode(clean).decode(), tally)


def _searched_parts(encoded: str, file: media.File) -> list[media.Part]:
    """Return the parts of a file; those after its end also with their letters.

    A key may be spelled in the letters of base64, and not only in the bytes.
    """
    parts: list[media.Part] = []
    for part in file.parts:
        if file.is_whole and part.start >= file.end:
            letters = encoded[part.start * 4 // 3 :]
            part = replace(part, text=f"{part.text}\n{letters}")
        parts.append(part)
    return parts


def _is_exempt(encoded: str, file: media.File, declared: str | None) -> bool:
    """Whether the letters of a file without findings are not searched as text.

    Bytes are searched in place of letters if the structure of a declared file is
    broken, because such a file has the letters of keys by chance as well.
    """
    if declared is not None:
        is_long = len(encoded) >= _LEAST_BROKEN
        return declared == file.media_type and (file.is_whole or is_long)
    return file.is_whole and all(part.start < file.end for part in file.parts)
