"""Markdown of people and models as HTML that loads nothing and leads nowhere.

markdown-it-py renders it without HTML of its own, and nh3 removes everything but the
tags and classes that this module lists.  An address stands as text after its words, so
that a recorded text cannot lead a reader to another site.
"""

# ruff: noqa: ARG002  # markdown-it-py calls each method with all four arguments
from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup, escape

from refold.domain.placeholders import STANDS_FOR

Mark = Callable[[str], Markup]
"""Returns a text with placeholders and stubs highlighted, and everything escaped."""

_TAGS: Final = frozenset(
    {
        "blockquote", "br", "code", "em", "hr", "li", "mark", "ol", "p", "pre", "s",
        "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
    }
)  # fmt: skip
_CLASSES: Final = {
    "mark": {"chip", "stub"},
    "p": {"title"},
    "pre": {"words"},
    "span": {"address"},
    "td": {"center", "right"},
    "th": {"center", "right"},
}
_ALIGNED: Final = {"text-align:center": "center", "text-align:right": "right"}
# Nested quotes and lists beyond this depth stay text.
_DEEPEST: Final = 20
_MOST_ADDED_CELLS: Final = 2_000  # of a table whose rows lack cells


class Prose(NamedTuple):
    """A text as HTML in two parts, cut between paragraphs.

    shown: its beginning.
    rest:  what a reader can unfold.
    lines: how many lines of the source the rest has.
    """

    shown: Markup
    rest: Markup
    lines: int


def render(text: str, mark: Mark, *, limit: int | None = None) -> Prose:
    """Render a text.

    limit: the characters of the source after which the rest is folded; None for none.
    """
    environment: MutableMapping[str, Any] = {"mark": mark}
    parser = _parser()
    tokens = parser.parse(text, environment)
    lines = text.split("\n")
    end, line = _end_of_shown(tokens, lines, limit)
    shown = parser.renderer.render(tokens[:end], parser.options, environment)
    rest = parser.renderer.render(tokens[end:], parser.options, environment)
    return Prose(_clean(shown), _clean(rest), len(lines) - line)


def _end_of_shown(
    tokens: Sequence[Token], lines: Sequence[str], limit: int | None
) -> tuple[int, int]:
    """Return the first folded token, and its line in the source.

    The first block is always shown, so that a folded text has a beginning.
    """
    if limit is None or sum(map(len, lines)) <= limit:
        return len(tokens), len(lines)
    seen = 0
    counted = 0  # lines that are in ``seen``
    for index, token in enumerate(tokens):
        # The cut is before a block that is in no other one.
        if token.level or token.nesting < 0 or token.map is None or index == 0:
            continue
        first = token.map[0]
        seen += sum(len(line) for line in lines[counted:first])
        counted = first
        following = sum(len(line) for line in lines[first : token.map[1]])
        if seen + following > limit:
            return index, first
    return len(tokens), len(lines)


def _clean(html: str) -> Markup:
    """Return HTML without anything that is not listed above."""
    return Markup(_cleaner().clean(html))  # noqa: S704  # nothing is left that runs


@cache
def _cleaner() -> nh3.Cleaner:
    """Return the sanitizer."""
    return nh3.Cleaner(
        tags=set(_TAGS),
        attributes={"ol": {"start"}},
        allowed_classes=_CLASSES,
        url_schemes=set(),
        link_rel=None,
    )


@cache
def _parser() -> MarkdownIt:
    """Return the parser: CommonMark with tables and strikethrough, without HTML.

    Definitions of references stay text, because a page would not show them otherwise.
    """
    parser = _Parser(
        "commonmark",
        {"html": False, "linkify": False, "breaks": True, "maxNesting": _DEEPEST},
        renderer_cls=_Renderer,
    )
    parser.enable(["table", "strikethrough"])
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.disable("reference")
    parser.inline.ruler.before("link", "placeholder", _placeholder)
    return parser


class _Parser(MarkdownIt):
    """Leaves addresses as they were written."""

    def normalizeLink(self, url: str) -> str:  # noqa: N802  # its base names it
        return url


def _table(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Read a table, unless most of its cells would have to be added.

    The parser fills short rows up to the number of columns, which takes a second for a
    head of many columns with many short rows.  Such a text stays as it was written.
    """
    if first < state.env.get("no_table_before", 0):
        return False
    if not table(state, first, end, True):
        return False
    if silent:
        return True
    columns = _line(state, first).count("|")
    missing = 0
    for number in range(first + 2, end):
        if _ends_table(state, number, end):
            break
        missing += max(0, columns - _line(state, number).count("|"))
        if missing > _MOST_ADDED_CELLS:
            # Its other lines are not tried again, so that this takes linear time.
            state.env["no_table_before"] = number
            return False
    return table(state, first, end, False)


def _ends_table(state: StateBlock, number: int, end: int) -> bool:
    """Whether a line ends the table before it, by the rules of the parser."""
    if state.sCount[number] < state.blkIndent or state.is_code_block(number):
        return True
    if state.isEmpty(number):
        return True
    # The parser ends a table where it ends a quote.
    rules = state.md.block.ruler.getRules("blockquote")
    return any(rule(state, number, end, True) for rule in rules)


def _line(state: StateBlock, number: int) -> str:
    """Return a line of the source."""
    begin = state.bMarks[number] + state.tShift[number]
    return state.src[begin : state.eMarks[number]]


def _placeholder(state: StateInline, silent: bool) -> bool:
    """Read a placeholder whole, so that its brackets never become a link."""
    match = STANDS_FOR.match(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("placeholder", "", 0).content = match[0]
    state.pos = match.end()
    return True


class _Renderer(RendererHTML):
    """Renders tokens; every text passes through the caller's ``mark``."""

    def text(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return str(env["mark"](tokens[index].content))

    placeholder = text

    def code_inline(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        return f"<code>{env['mark'](tokens[index].content)}</code>"

    def code_block(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        return f'<pre class="words">{env["mark"](tokens[index].content)}</pre>\n'

    def fence(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return self.code_block(tokens, index, options, env)

    def image(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        return f"{env['mark'](token.content)}{_address(token, 'src', env)}"

    def link_open(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        env.setdefault("links", []).append(index)  # its address follows its words
        return ""

    def link_close(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        start = env["links"].pop()
        link = tokens[start]
        words = "".join(token.content for token in tokens[start + 1 : index])
        return "" if words == link.attrs.get("href") else _address(link, "href", env)

    def heading_open(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        return '<p class="title">'  # no heading of the page itself

    def heading_close(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        return "</p>\n"

    def th_open(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        if not tokens[index + 1].content:  # a heading without words heads nothing
            return "<td>"
        return _cell_open(tokens[index])

    def th_close(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        return "</th>" if tokens[index - 1].content else "</td>"

    def td_open(
        self, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        return _cell_open(tokens[index])


def _cell_open(token: Token) -> str:
    """Return the start of a cell, with a class in place of a style."""
    css_class = _ALIGNED.get(str(token.attrs.get("style", "")))
    if css_class is None:
        return f"<{token.tag}>"
    return f'<{token.tag} class="{css_class}">'


def _address(token: Token, name: str, env: Any) -> str:
    """Return the address and the title of a link as text."""
    parts = [token.attrs.get(name), token.attrs.get("title")]
    address = " ".join(str(part) for part in parts if part)
    if not address:
        return ""
    shown = env["mark"](address)
    return f' <span class="address">{escape("<")}{shown}{escape(">")}</span>'
