"""Pieces of patterns that rules of several packs are made of."""

# A word may start after an escape of JSON, as in ``\neyJ``, or of a URL, as in ``%3D``.
WORD = (
    r"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrtbf])"
    r"|(?<=%[0-37][0267ACDFacdf])|(?<=%25[0-37][0267ACDFacdf]))"
)
# Not inside a word or a number.
START = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))"
END = "(?![0-9A-Za-z])"
# Not inside a longer number, a word, a fraction or a chain of numbers.
FROM = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))(?<![0-9][.\-])"
TO = r"(?![0-9A-Za-z])(?![.\-][0-9])"
# The same, for a shape: a character that is part of it; texts have one at each end.
EDGE = r"(?:[^0-9a-z]|\\[nrtbf])"
STOP = "[^0-9a-z]"
# The byte before a word, in any case; letters that may end an escape are allowed.
LEAD = r"[^13-589eg-mo-qsu-z_\-]"

QUOTE = r"\\{0,7}[\"'`]"
