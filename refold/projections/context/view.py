"""The view: what a model is sent, and what of the session each piece stands for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from refold.domain.canonical import digest, text_digest
from refold.domain.events import Request, StrategyRef

Message = dict[str, Any]
SpanKind = Literal[
    "system",
    "examples",
    "memory",
    "summary",
    "raw",
    "pinned",
    "stub",
    "evidence",
    "state",
]


class ViewSpan(NamedTuple):
    """A run of seqs that one piece of the view stands for; None: it was handed in.

    ``stub`` is what is not shown whole; ``summary`` the summary's seq in the derived
    stream.
    """

    kind: SpanKind
    first: int | None = None
    last: int | None = None
    summary: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Messages and system prompt for the Messages API.

    tokens:      stored estimates, a fixed overhead for each message, and what the
                 caller handed in.
    digest:      the SHA-256 of the canonical JSON of system and messages.
    over_budget: tokens over the model's window.
    at:          the last seq of the main stream that was read; ``derived_seq`` that of
                 the derived stream.
    """

    messages: list[Message] = field(repr=False)
    system: str | None = field(repr=False)
    tokens: int
    digest: str
    spans: tuple[ViewSpan, ...]
    over_budget: int
    strategy: str
    fingerprint: str
    at: int
    ref: StrategyRef = field(repr=False)
    derived_seq: int = 0

    def request(
        self, *, model: str | None = None, matches: bool | None = None
    ) -> Request:
        """The event that records that this was sent, so that it can be shown again."""
        return Request(
            strategy=self.ref,
            through_seq=max(self.at, 0),
            derived_seq=self.derived_seq,
            digest=self.digest,
            tokens=self.tokens,
            system_digest=None if self.system is None else text_digest(self.system),
            model=model,
            matches=matches,
        )

    def to_json(self) -> dict[str, Any]:
        """The view as ``refold context --json`` shows it."""
        return {
            "strategy": self.strategy,
            "fingerprint": self.fingerprint,
            "at": self.at,
            "tokens": self.tokens,
            "digest": self.digest,
            "over_budget": self.over_budget,
            "system": self.system,
            "messages": self.messages,
            "spans": [
                {"kind": span.kind, "first": span.first, "last": span.last}
                for span in self.spans
            ],
        }


def view_digest(system: str | None, messages: list[Message]) -> str:
    """What proves that a view is the same, byte for byte."""
    return digest({"system": system, "messages": messages})
