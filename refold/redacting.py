"""``refold.redact``: a value without secrets and personal data, with no store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from refold.redaction.engine import Redactor
    from refold.redaction.policy import Policy

# A redactor takes some tenths of a second to make.
_REMEMBERED: Final = 8


class _Made(NamedTuple):
    """A redactor, with its policy, so that no other takes that one's ``id``."""

    redactor: Redactor
    policy: object


_made: Final[dict[str | int | None, _Made]] = {}


@overload
def redact(value: str, policy: str | os.PathLike[str] | Policy | None = ...) -> str: ...


@overload
def redact(value: Any, policy: str | os.PathLike[str] | Policy | None = ...) -> Any: ...


def redact(value: Any, policy: str | os.PathLike[str] | Policy | None = None) -> Any:
    """A text, or a value of JSON, as an event would hold it: redacted.

    ``policy`` is a file, or a ``Policy``; None is ``REFOLD_POLICY``, else the default.
    A process reads a file once.

    Raises RefoldError if it cannot be redacted, InvalidConfiguration for a policy that
    cannot be used.
    """
    from refold.redaction.engine import RedactionError

    redactor = _redactor(policy)
    try:
        clean, _ = redactor.value(value)
    except RedactionError as error:
        raise RefoldError(f"the value could not be redacted ({error})") from None
    return clean


def _redactor(policy: str | os.PathLike[str] | Policy | None) -> Redactor:
    from refold import config
    from refold.bootstrap import make_redactor

    key: str | int | None
    if policy is None:
        key = os.environ.get("REFOLD_POLICY")
    elif isinstance(policy, str | os.PathLike):
        key = os.fspath(policy)
    else:
        key = id(policy)
    known = _made.get(key)
    if known is None:
        known = _Made(make_redactor(config.policy(policy)), policy)
        if len(_made) >= _REMEMBERED:
            _made.clear()
        _made[key] = known
    return known.redactor
