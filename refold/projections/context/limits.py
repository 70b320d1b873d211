"""The limits of abridged histories and protected content."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_serializer

# The share of the window that the words of the user may take beside summaries, the
# lower bound of that share, and the share that they may take of a small window.
_PROTECTED_SHARE: Final = 0.08
_PROTECTED_TOKENS: Final = 4_000
_SMALL_WINDOW_SHARE: Final = 0.25


def protected_tokens(window_tokens: int) -> int:
    """Return the most tokens of protected content in a window of this size."""
    wished = max(_PROTECTED_TOKENS, int(window_tokens * _PROTECTED_SHARE))
    return min(wished, int(window_tokens * _SMALL_WINDOW_SHARE))


def client_summary_tokens(protected_tokens: int) -> int:
    """Return the most tokens of a client's summaries next to protected content.

    protected_tokens: the most tokens of that content.
    """
    return protected_tokens // 4


# A longer message of the user says itself what it is about, unless it names an option.
LONGEST_ANSWER: Final = 80  # characters
# A message up to this length may still choose an option by its label.
LONGEST_CHOICE: Final = 2_000  # characters


class Limits(BaseModel):
    """The limits of an abridged history.

    A text over its limit loses its middle.

    total_chars:  the characters of the whole history.
    user_chars:   the characters of each user input.
    agent_chars:  the characters of each answer.
    action_chars: the characters of each item in a list.
    listed:       the items of each list in a turn; the newest are kept.
    modified, created, deleted, viewed, commands: the items of that list, instead of
                  ``listed``.
    whole_turns:  whether each turn has these limits in full.  Whole turns are then
                  left out, the oldest first, until the rest without the ledger of
                  names fits ``total_chars``.  Otherwise the limits are upper bounds:
                  older turns become shorter before any turn is left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    total_chars: int = Field(default=10_000, ge=1)
    user_chars: int = Field(default=1_000, ge=1)
    agent_chars: int = Field(default=2_000, ge=1)
    action_chars: int = Field(default=200, ge=1)
    listed: int = Field(default=10, ge=1)
    modified: int | None = Field(default=None, ge=0)
    created: int | None = Field(default=None, ge=0)
    deleted: int | None = Field(default=None, ge=0)
    viewed: int | None = Field(default=None, ge=0)
    commands: int | None = Field(default=None, ge=0)
    whole_turns: bool = False

    @model_serializer
    def _without_later_defaults(self) -> dict[str, int | bool]:
        # The optional limits were added later: without them, fingerprints stay the
        # same.
        limits: dict[str, int | bool] = {}
        for name, value in self:
            if value is not None and value is not False:
                limits[name] = value
        return limits

    def of(self, name: str) -> int:
        """Return the number of items that this list may have."""
        most: int | None = None
        if name in _LISTS:
            most = getattr(self, name)
        return self.listed if most is None else most


# The lists that can have a limit of their own.
_LISTS: Final = frozenset(
    name for name, field in Limits.model_fields.items() if field.default is None
)
