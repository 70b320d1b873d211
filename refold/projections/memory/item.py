"""An item of memory: one thing that it holds, how sure it is, and what shows it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.domain.canonical import canonical
from refold.domain.envelope import from_microseconds
from refold.domain.events import JsonObject
from refold.projections.memory.shown import EXTRACTOR

Procedural: TypeAlias = Literal["path", "failure", "recovery", "check", "effort"]
Declarative: TypeAlias = Literal["error", "topic", "progress", "mistake", "preference"]
Kind: TypeAlias = Procedural | Declarative

# So many independent sessions must show something before it may be said to a model.
INDEPENDENT: Final = 3
EVIDENCE: Final = 5
_DAY: Final = 86_400_000_000
# How long after it was last shown an item holds: what is known of a person, shorter.
LASTS: Final[dict[Kind, int]] = {
    **dict.fromkeys(("path", "failure", "recovery", "check", "effort"), 180 * _DAY),
    **dict.fromkeys(("error", "topic", "progress"), 90 * _DAY),
    "mistake": 30 * _DAY,
    "preference": 365 * _DAY,
}


class Evidence(NamedTuple):
    """Where it is shown: a session, and the seqs of events of it."""

    session_id: str
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that memory holds.

    content:    structured, in a closed vocabulary: names and numbers, no text.
    sessions:   how many sessions show it, those that are tainted left out;
                ``tainted_sessions`` are those.  A session is one witness, and so is
                one with all that was forked from it.
    success:    the mean of how these sessions ended, 0 to 1; None if nothing says it.
    confidence: the lower bound of what the item claims, 0 to 1.
    against:    the lower bound of the contrary: for a path, of how it fails.
    tainted:    too few sessions would show it without the tainted ones.
    stale:      something newer says the contrary; kept, and not said to a model.
    cost:       medians over its sessions: ``tokens``, ``milliseconds``.
    evidence:   of at most ``EVIDENCE`` sessions, the newest.
    models:     that took part in what shows it.
    created_at: when it was first shown, ``updated_at`` last, in microseconds since
                1970, by the clock of the events.
    expires_at: after that it is not said any more.
    version:    grows by one with each session that has to do with it.
    """

    memory_id: str
    user_id: str
    kind: Kind
    scenario: str
    content: JsonObject
    sessions: int
    tainted_sessions: int
    success: float | None
    confidence: float
    against: float
    tainted: bool
    evidence: tuple[Evidence, ...]
    created_at: int
    updated_at: int
    expires_at: int
    models: tuple[str, ...] = ()
    cost: JsonObject | None = None
    stale: bool = False
    extractor: int = EXTRACTOR

    @property
    def version(self) -> int:
        return self.sessions + self.tainted_sessions

    @property
    def established(self) -> bool:
        """Whether enough independent sessions show it, and nothing newer denies it."""
        return self.sessions >= INDEPENDENT and not self.tainted and not self.stale

    def to_json(self) -> JsonObject:
        """All of it, under the names of the documentation."""
        return {
            "memory_id": self.memory_id,
            "user_id": self.user_id,
            "kind": self.kind,
            "scenario": self.scenario,
            "content": self.content,
            "provenance": {
                "sessions": [
                    {"session_id": one.session_id, "seqs": list(one.seqs)}
                    for one in self.evidence
                ],
                "extractor": self.extractor,
                "models": list(self.models),
            },
            "sample_count": self.sessions,
            "tainted_sessions": self.tainted_sessions,
            "success": self.success,
            "confidence": self.confidence,
            "against": self.against,
            "tainted": self.tainted,
            "stale": self.stale,
            "established": self.established,
            "cost": self.cost,
            "created_at": _told(self.created_at),
            "updated_at": _told(self.updated_at),
            "expires_at": _told(self.expires_at),
            "version": self.version,
        }


def memory_id(kind: Kind, scenario: str, content: JsonObject) -> str:
    """The item's name: 16 letters and digits, of what it says and where it holds."""
    identity = b"\x00".join((kind.encode(), scenario.encode(), canonical(content)))
    return "m" + hashlib.sha256(identity).hexdigest()[:15]


def _told(at: int) -> str:
    return from_microseconds(at).isoformat().replace("+00:00", "Z")
