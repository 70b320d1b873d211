"""The errors that Refold raises on purpose.

RefoldError
    InvalidEvent          the event breaks a rule of its type or its session: correct it
    EventTooLarge         the event exceeds the hard limit even after the size guard
    RedactionFailed       redaction failed, so the event was refused
    StaleSession          the stream has newer events: read it and decide again
    LeaseLost             another worker has the lease, so the write was refused
    IdempotencyConflict   the idempotency key was used before for other content
    UserNotFound          the database has no data of this user
    SessionNotFound       the user has no such session
    ShareNotFound         there is no such share: it expired, or was revoked or erased
    SessionClosed         the session has ended: open another or fork it
    Erased                the user or session was erased: reads and writes fail
    NotErased             there is nothing to restore, or nobody to readmit
    OnHold                a legal hold forbids the erasure: release it first
    AlreadyDecided        the question has a decision: nothing was added
    Frozen                the user's data is read-only: unfreeze it first
    Expired               the retention policy deleted a blob; its event remains
    KeyUnavailable        the key of this data is missing, or is a different one
    CorruptEvent          the stored data is not the data that was written
    SealBroken            leaves, tree heads, and anchor contradict each other
    UnknownStrategy       there is no such strategy, or no such parameter
    UnknownModel          the window or the prices of a model are unknown: register it
    ContextTooLarge       the context exceeds the model's window: pass fewer extras
    SummaryRefused        the summary is empty, or longer than its source
    SummarizerFailed      no summary was written: the context stays the same
    CountingFailed        the provider counted no tokens: use an estimate
    AnswerFailed          a model did not answer: nothing was written
    RecordingFailed       a model's answer was not recorded: the error contains it
    ExportFailed          an export failed, and its files were removed
    ImportFailed          a transcript was not imported: nothing was written
    StoreUnavailable      the database is unreachable, busy, full, or read-only
    IncompatibleStore     the database has a newer schema, or another program's
    InvalidConfiguration  a setting, policy, or URL is invalid: nothing was opened

Each error has its numbers as attributes.  No message contains the text of an event,
because a refused event may contain personal data.
"""

from __future__ import annotations

import errno
from typing import Any, Final

__all__ = [
    "AlreadyDecided", "AnswerFailed", "ContextTooLarge", "CorruptEvent",
    "CountingFailed", "Erased", "EventTooLarge", "Expired", "ExportFailed", "Frozen",
    "IdempotencyConflict", "ImportFailed", "IncompatibleStore", "InvalidConfiguration",
    "InvalidEvent", "KeyUnavailable", "NotErased", "OnHold", "RecordingFailed",
    "RedactionFailed", "RefoldError", "SealBroken", "SessionClosed", "SessionNotFound",
    "ShareNotFound", "StaleSession", "StoreUnavailable", "SummarizerFailed",
    "SummaryRefused",
    "UnknownModel", "UnknownStrategy", "UserNotFound",
]  # fmt: skip


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 event, 2,000 events.

    noun:   in the singular.
    plural: the noun's plural, if that is not the noun with "s".
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {plural or noun + 's'}"


_REMEDIES: Final = {
    errno.EACCES: "check the rights on the file and its folder",
    errno.EPERM: "check the rights on the file and its folder",
    errno.EROFS: "the file system is read-only: name a place that can be written",
    errno.ENOSPC: "free space and try again",
    errno.EDQUOT: "free space within your quota and try again",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file: name a folder that exists",
    errno.EEXIST: "a part of the path is a file: name a folder that exists",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.EISDIR: "it is a folder: name a file",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine",
    errno.EIO: "check the disk",
}


def remedy_for(error: OSError) -> str:
    """Return the advice for an error of the file system."""
    return _REMEDIES.get(error.errno or 0, "check the path and the disk")


class RefoldError(Exception):
    """The base class of the errors that Refold raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling must not call `__init__`, whose arguments differ from `args`.
        return type(self).__new__, (type(self), *self.args), vars(self)


class _WithReason(RefoldError):
    """An error with a reason, which contains nothing from a session."""

    _message = "{}"

    def __init__(self, reason: str) -> None:
        super().__init__(self._message.format(reason))
        self.reason = reason


class InvalidEvent(RefoldError, ValueError):
    """The event breaks a rule of its type or of its session."""


class EventTooLarge(RefoldError):
    """The event exceeds the hard limit even after the size guard."""

    def __init__(self, event_type: str, *, size: int, limit: int) -> None:
        super().__init__(
            f"the {event_type} event is {size} bytes after the size guard, the limit "
            f"is {limit}: split it, or raise Limits.event_bytes"
        )
        self.event_type = event_type
        self.size = size
        self.limit = limit


class RedactionFailed(RefoldError):
    """Redaction failed, so nothing was written."""

    def __init__(self, event_type: str, *, reason: str) -> None:
        super().__init__(
            f"the {event_type} event could not be redacted ({reason}) and was refused: "
            "nothing was written"
        )
        self.event_type = event_type
        self.reason = reason


class StaleSession(RefoldError):
    """The stream is not at the seq that the writer expected."""

    def __init__(self, session_id: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"session {session_id!r} is at seq {actual}, expected {expected}: "
            "read it again and retry"
        )
        self.session_id = session_id
        self.expected = expected
        self.actual = actual


class LeaseLost(RefoldError):
    """Another worker has the lease, so a write of its former owner was refused."""

    def __init__(self, work: str) -> None:
        super().__init__(
            f"the lease for {work} belongs to another worker by now, so nothing was "
            "written: let that worker finish"
        )
        self.work = work


class IdempotencyConflict(RefoldError):
    """The idempotency key was used before for other content."""

    def __init__(self, session_id: str, *, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"this idempotency key was used in session {session_id!r} for other "
            f"content (seq {first_seq} to {last_seq}): use a new key for new content"
        )
        self.session_id = session_id
        self.first_seq = first_seq
        self.last_seq = last_seq


class SessionNotFound(RefoldError, LookupError):
    """The user has no session with this id."""

    def __init__(self, user_id: str, session_id: str) -> None:
        super().__init__(
            f"user {user_id!r} has no session {session_id!r}: "
            "`refold sessions --ids` lists all sessions"
        )
        self.user_id = user_id
        self.session_id = session_id


class UserNotFound(RefoldError, LookupError):
    """The database, which the message names, has no data of this user.

    can_be_accepted: whether the call has the option ``absent_ok``.
    """

    def __init__(
        self, user_id: str, *, database: str, can_be_accepted: bool = True
    ) -> None:
        advice = "check the name and the database"
        if can_be_accepted:
            advice += (
                ", or accept unknown users with --absent-ok (in Python: absent_ok=True)"
            )
        super().__init__(f"there is nothing of that user in {database}: {advice}")
        self.user_id = user_id
        self.database = database


class ShareNotFound(RefoldError, LookupError):
    """There is no such share: it expired, was revoked or erased, or never existed."""

    def __init__(self) -> None:
        super().__init__(
            "there is no such share: it has expired, was revoked or erased, or never "
            "existed"
        )


class SessionClosed(RefoldError):
    """The session has ended and accepts no more events."""

    def __init__(self, session_id: str, *, head_seq: int) -> None:
        super().__init__(
            f"session {session_id!r} was ended at seq {head_seq}: "
            "start another, or fork it"
        )
        self.session_id = session_id
        self.head_seq = head_seq


class Erased(RefoldError):
    """The user or the session was erased, and can be neither read nor written."""

    def __init__(self, what: str) -> None:
        message = f"{what} was erased"
        if what == "the user":
            message = "the user was erased; `refold readmit` lets the id be used again"
        super().__init__(message)
        self.what = what

    @property
    def of_user(self) -> bool:
        """Whether the whole user was erased, and not only a session."""
        return self.what == "the user"


class NotErased(RefoldError, LookupError):
    """The user was not erased, or the erasure cannot be undone."""


class OnHold(RefoldError):
    """A legal hold or a freeze prevents the erasure or expiry of the user's data."""

    def __init__(self, name: str, reason: str) -> None:
        if name == "freeze":
            message = f"the user is frozen ({reason}): `refold freeze --lift` first"
        else:
            message = (
                f"the legal hold {name!r} ({reason}) forbids it: release the hold first"
            )
        super().__init__(message)
        self.name = name
        self.reason = reason


class AlreadyDecided(RefoldError):
    """The question to a human has a decision, and accepts no second one."""

    def __init__(self, seq: int, *, decided_at: int) -> None:
        super().__init__(
            f"the question at seq {seq} was decided at seq {decided_at}: that "
            "decision stands"
        )
        self.seq = seq
        self.decided_at = decided_at


class Frozen(RefoldError):
    """The user's data is frozen: it can be read, but not changed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is frozen: it can be read, but not changed until "
            "`refold freeze --lift`"
        )
        self.what = what


class Expired(RefoldError, LookupError):
    """The retention policy deleted a blob; its event still has the ends of the text."""

    def __init__(self, sha256: str) -> None:
        super().__init__(
            f"the whole text {sha256} expired under the retention policy: its event "
            "keeps only what it shows"
        )
        self.sha256 = sha256


class KeyUnavailable(RefoldError):
    """The key of this data is missing, or the available key is a different one."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy


class CorruptEvent(RefoldError):
    """The stored data is not the data that was written."""

    def __init__(self, where: str, *, seq: int, reason: str) -> None:
        super().__init__(
            f"{where} seq {seq}: {reason}; run `refold verify`, and restore the event "
            "from a backup"
        )
        self.where = where
        self.seq = seq
        self.reason = reason


class SealBroken(_WithReason):
    """Leaves, tree heads, and anchor contradict each other; nothing was sealed."""

    _message = "{}: `refold verify` names the contradiction; nothing was sealed"


class UnknownStrategy(RefoldError, ValueError):
    """There is no strategy of this name, or a parameter is unknown or invalid."""


class UnknownModel(RefoldError, LookupError):
    """The window or the prices of a model are unknown.

    missing: "window" or "prices".
    """

    def __init__(self, model: str, *, missing: str = "window") -> None:
        key = "prices" if missing == "prices" else "context_tokens"
        value = "{ input = …, output = … }" if missing == "prices" else "…"
        super().__init__(
            f"the {missing} of model {model!r} is not known: register it with "
            f"refold.strategies.register_model({model!r}, context_tokens=…, prices=…), "
            "or in "
            f'refold.toml under [models."{model}"] with {key} = {value}'
        )
        self.model = model
        self.missing = missing


class ContextTooLarge(RefoldError):
    """The context exceeds the model's window, and no compaction makes it fit.

    tokens: the tokens of the context.
    window: the tokens of the window.
    over:   the difference.
    """

    def __init__(self, tokens: int, window: int, *, remedy: str) -> None:
        self.tokens = tokens
        self.window = window
        self.over = tokens - window
        super().__init__(
            f"the context has {tokens:,} tokens, {self.over:,} more than the window of "
            f"{window:,}: {remedy}"
        )


class SummaryRefused(RefoldError):
    """The summary is empty or longer than its source; the context stays the same."""

    def __init__(self, reason: str, *, words: int, source_words: int) -> None:
        super().__init__(
            f"the summary was refused ({reason}): {words} words for a source of "
            f"{source_words}; the context stays as it was"
        )
        self.reason = reason
        self.words = words
        self.source_words = source_words


class SummarizerFailed(_WithReason):
    """The summarizer wrote no summary; the context stays the same."""

    _message = "no summary was written, the context stays as it was: {}"


class CountingFailed(_WithReason):
    """The provider counted no tokens."""

    _message = "the tokens were not counted: {}"


class AnswerFailed(_WithReason):
    """The model of a rerun did not answer."""

    _message = "the model did not answer, nothing was written: {}"


class RecordingFailed(RefoldError):
    """A model answered, but the answer could not be recorded.

    response:  the answer.  Recording it again is safe: the session has it only once.
    __cause__: the error that prevented the recording.
    """

    def __init__(self, response: object, cause: Exception) -> None:
        why = str(cause) if isinstance(cause, RefoldError) else type(cause).__name__
        super().__init__(
            f"the model answered, but the answer is not in the session ({why}): it is "
            "this error's .response; capture.record(response=error.response) tries "
            "again"
        )
        self.response = response


class ExportFailed(RefoldError):
    """An export failed, and the files that it had written were removed."""


class ImportFailed(RefoldError):
    """A transcript could not be imported; nothing was written."""

    def __init__(self, where: str, why: str, *, seq: int | None = None) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why
        self.seq = seq


class StoreUnavailable(RefoldError):
    """The database is unreachable, busy, full, or read-only."""

    def __init__(self, reason: str, *, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason = reason
        self.remedy = remedy


class IncompatibleStore(RefoldError):
    """The database was made by a newer Refold or by another program."""


class InvalidConfiguration(RefoldError, ValueError):
    """A setting, a policy, or a URL is invalid; nothing was opened."""
