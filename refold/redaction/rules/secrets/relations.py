"""How a name is tied to its value, in any syntax, and how a value is written there.

Each part stands here once.  A text is read as it would stand without what tools put
before its lines: a new kind of prefix is a line in ``BREAK``.
"""

from __future__ import annotations

from typing import Final

from refold.redaction.rules.rule import QUOTE

# What stands before a line: its number, the file it is of, signs of comments, of diffs,
# of quotes and of boxes.
_PREFIX: Final = (
    r"(?:[ \t]{0,8}[0-9]{1,7}(?:[ \t]?(?:→|[:|│])|-|\t|\\{1,7}t)[ \t]?"
    r"|[\w./]{1,128}[:\-][0-9]{1,7}[:\-]"
    r"|[ \t]{0,16}(?:#|//|\*|--|;|>|│|┃|\|)[ \t]"
    r"|[+\-](?=[ \t\w\"']))?"
)
# The end of a line as it stands, as JSON escapes it, once and more, and as HTML has it.
END_OF_LINE: Final = r"(?:\r?\n|(?:\\{1,7}r)?\\{1,7}n|<br ?/?>|&#(?:10|xa|xA);)"
BREAK: Final = rf"{END_OF_LINE}{_PREFIX}"

_CLOSED: Final = rf"(?:{QUOTE}|&quot;)?\]?(?:\*{{1,2}})?"
# A type, before the sign that gives the value: names and brackets, no spaces.
_TYPED: Final = (
    r"(?:[ \t]?:[ \t]?(?:&(?:'static )?)?[A-Za-z_][A-Za-z_.]{0,40}"
    r"(?:\[[\w., |\[\]]{0,40}\])?(?:[ \t]?\|[ \t]?[A-Za-z_.]{1,20}){0,3}\??(?=[ \t]?=))?"
)
_WHOSE: Final = (
    r"(?:[ \t](?:for|of|on|at|in|to)(?:[ \t][^\s:=,;\"%()\[\]{}]{1,64}){1,3}"
    r"(?=[ \t]?[:=]|[ \t](?:is|was)[ \t]))?"
)
_SIGN: Final = r"(?:=>|:=|\?=|={1,3}|:{1,2}|[：＝]|[\-—–]>|[ \t][—–](?=[ \t]))"
# The value begins on the next line: of a block in YAML, continued, or below its name.
_NEXT: Final = (
    rf"(?:(?:[|>][+\-]?[0-9]?[ \t]{{0,4}}|\\{{1,2}}(?=\r?\n))?{BREAK}[ \t]{{0,32}})"
)
_SEPARATOR: Final = (
    rf"(?:[ \t]{{0,16}}{_SIGN}(?:[ \t]{{0,16}}{_NEXT}?|\\{{1,7}}t)"
    r"|[ \t](?:is|was|to|es|est|ist|lautet|é)[ \t]{1,2}(?:now[ \t])?"
    r"|[ \t]?(?:[就]?是[:：]?|为[:：]?|は|는|은)[ \t]?[「『“]?|[ \t]{1,2}(?=\\{0,7}[\"'])"
    r"|[ \t]{0,16}(?:\||\\{1,7}t|\t)[ \t]{0,16}|,[ \t]{0,4}(?=\\{0,7}[\"'])"
    r"|[,;](?=[^\s,;\"'()]{4,128}(?:[\r\n]|\\{1,7}[nr]|\Z))"
    r"|\([ \t]{0,2}(?=\\{0,7}[\"'])|[ \t]{1,4}value[ \t]?=[ \t]?(?=\\{0,7}[\"'])"
    r"|%(?:25)?3[AaDd](?:%(?:20|22)|\+)?|>(?=[^<>\s]{4,256}</))"
)
IS: Final = rf"{_CLOSED}{_TYPED}{_WHOSE}{_SEPARATOR}(?:\*{{1,2}}[ \t]{{1,4}})?"
_PLAIN: Final = (
    r"[^\s\"'`<>()\[\]{}|\\.,;:&=\u3000-\u303f\u4e00-\u9fff\u3040-\u30ff\uff00-\uff65]"
)
_JOIN: Final = r"(?:[.:]|[=,;&](?![\w.\-]{1,30}[=:]))"
VALUE: Final = (
    r"(?:[bBrRuUfF@$]{1,2}(?=[\"']))?(?:(?P<escaped>\\{1,7}[\"'])|(?P<quote>[\"'`]))?"
    r"(?P<value>(?(escaped)[^\"'\\\n]{3,1024}"
    r"|(?(quote)(?:(?!(?P=quote))[^\\\n]|\\[^\n]){3,1024}"
    rf"|{_PLAIN}{{1,1024}}+(?:{_JOIN}{{1,2}}{_PLAIN}{{1,1024}}+){{0,16}}(?:={{1,2}}(?!\w))?)))"
)
# What stands after a name before its value, as far as it must: engines look back over
# all that this may match.
THEN: Final = (
    r"(?:\\|[\"'`]?\]?(?:[ \t]{4}|\([ \t]{0,2}[\"'\\]|[ \t]{1,2}[\"'`]"
    r"|[ \t]{0,3}(?:[=:|>%*\\\t&]|\?=|[,;](?:[!-~]| {1,4}[\\\"'])|：|＝|是|就|为|—|–|-|は"
    r"|is[ \t\\]|was[ \t\\]|es[ \t\\]|ist[ \t\\]|to[ \t\\]|for[ \t\\]|o[fn][ \t\\]|at[ \t\\]"
    r"|in[ \t\\]|value)))"
)
# White space, lines included; taken in one way only, as there are many to take it.
WHITE: Final = rf"(?:{BREAK}|[ \t\n\r]|\\{{1,7}}[nrt]){{1,24}}+"
