"""What a caller hands in beside the session: it becomes part of the view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypedDict

import orjson

from refold.domain.canonical import canonical
from refold.domain.errors import InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.tokens import estimate
from refold.projections.context.messages_rules import violations
from refold.projections.context.view import Message
from refold.projections.memory.section import Advice

WINDOW_TOKENS: Final = 200_000
SECTIONS: Final = (
    *("system", "tools", "examples", "advice", "memory", "evidence", "state"),
)
_LISTS: Final = frozenset({"tools", "examples", "memory", "evidence"})


class HandedIn(TypedDict, total=False):
    """What a call may hand in, by keyword.

    system:   a system prompt instead of the session's own.
    tools:    tool definitions, sent as they are.
    examples: Messages API messages that come first, in alternating roles.
    advice:   what memory says, as ``store.advice`` and ``session.advice`` give it.
    memory:   texts about the user, then about the project, the most important first.
    evidence: documents for this request alone, the best first.
    state:    a working memory to show, such as ``session.state()``.
    window:   how many tokens a request may have, the answer not counted.
    budgets:  how many of them a section may have, by its name above.
    """

    system: str | None
    tools: Sequence[JsonObject]
    examples: Sequence[Message]
    advice: Advice | None
    memory: Sequence[str]
    evidence: Sequence[str]
    state: JsonObject | None
    window: int | None
    budgets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Extras:
    """The parts of a context that no session holds; HandedIn says what each is.

    A message over a quarter of ``window_tokens`` is shortened.
    """

    system: str | None = None
    examples: tuple[Message, ...] = ()
    advice: JsonObject | None = None
    memory: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    state: JsonObject | None = None
    tools: tuple[JsonObject, ...] = ()
    window_tokens: int = WINDOW_TOKENS

    @property
    def tools_tokens(self) -> int:
        """What the tool definitions cost."""
        return estimate(self.tools)

    @property
    def advice_text(self) -> str:
        """What memory says to the model."""
        return str(self.advice["text"]) if self.advice else ""

    @property
    def advised(self) -> tuple[str, ...]:
        """The items of memory that it says."""
        found = self.advice["items"] if self.advice else None
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @classmethod
    def of(cls, given: HandedIn) -> Self:
        """The extras that a call handed in, its budgets left out.

        Raises InvalidEvent, naming the section, for what no request could hold.
        """
        unknown = sorted(set(given) - set(HandedIn.__annotations__))
        if unknown:
            known = ", ".join(HandedIn.__annotations__)
            raise InvalidEvent(
                f"there is no {unknown[0]!r} to hand in (there is: {known})"
            )
        window, advice = given.get("window"), given.get("advice")
        if not isinstance(advice, Advice | None):
            raise InvalidEvent("advice: is what store.advice or session.advice gives")
        extras = cls(
            system=given.get("system"),
            examples=_tuple("examples", given.get("examples", ()), dict),
            advice=advice.handed() if advice and advice.text else None,
            memory=_tuple("memory", given.get("memory", ()), str),
            evidence=_tuple("evidence", given.get("evidence", ()), str),
            state=given.get("state"),
            tools=_tuple("tools", given.get("tools", ()), dict),
            window_tokens=WINDOW_TOKENS if window is None else window,
        )
        extras._check()
        return extras

    def _check(self) -> None:
        if not isinstance(self.system, str | None):
            raise InvalidEvent("system: must be a text")
        if not isinstance(self.state, dict | None):
            raise InvalidEvent("state: must be an object of names and JSON values")
        if not isinstance(self.window_tokens, int) or self.window_tokens < 1:
            raise InvalidEvent(f"window: at least 1 token, not {self.window_tokens!r}")
        problems = violations(self.examples) if self.examples else []
        if problems:
            raise InvalidEvent(f"examples: {problems[0]}")
        if self.examples and self.examples[-1]["role"] != "assistant":
            raise InvalidEvent("examples: the last message must be the assistant's")

    def dump(self) -> dict[str, str]:
        """The sections that hold something, each as canonical JSON."""
        sections = ((name, getattr(self, name)) for name in SECTIONS)
        try:
            return {
                name: canonical(value).decode()
                for name, value in sections
                if value not in (None, ())
            }
        except TypeError:
            raise InvalidEvent("what is handed in must be JSON") from None

    @classmethod
    def load(cls, dumped: Mapping[str, str], window_tokens: int) -> Self:
        """The extras that ``dump`` wrote.  Raises ValueError for anything else."""
        values: dict[str, Any] = {
            name: orjson.loads(text) for name, text in dumped.items()
        }
        for name in _LISTS & values.keys():
            values[name] = tuple(values[name])
        if not isinstance(values.get("advice"), dict | None):
            raise ValueError("advice is no object")
        try:
            return cls(**values, window_tokens=window_tokens)
        except TypeError as error:
            raise ValueError(str(error)) from None


NO_EXTRAS: Final = Extras()


def _tuple(name: str, given: object, kind: type) -> tuple[Any, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidEvent(f"{name}: must be a list")
    if not all(isinstance(item, kind) for item in given):
        what = "texts" if kind is str else "objects"
        raise InvalidEvent(f"{name}: must be a list of {what}")
    return tuple(given)
