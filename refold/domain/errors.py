"""Everything Refold raises on purpose.

RefoldError
    InvalidEvent          the event breaks a rule of its type or of its session: mend it
    EventTooLarge         over the hard limit even after the size guard
    RedactionFailed       redaction could not be completed, so the event was refused
    StaleSession          the stream moved on since it was read: read it and decide anew
    IdempotencyConflict   the same idempotency key was used for other content
    UserNotFound          nothing of such a user to erase
    SessionNotFound       no such session for this user
    SessionClosed         the session was ended: open or fork another
    Erased                the user or session was erased: it takes and gives nothing
    NotErased             there is nothing to restore, or nobody to readmit
    OnHold                a legal hold forbids to erase: release it first
    AlreadyDecided        the question has its decision: nothing was added
    Frozen                the user's data may be read, not changed: unfreeze it first
    Expired               a whole text is gone by the retention policy, its ends are not
    KeyUnavailable        the key that opens this data is missing, or is another one
    CorruptEvent          what is stored is not what was written
    SealBroken            leaves, tree heads and anchor do not fit together
    UnknownStrategy       no strategy of that name, or a wrong parameter
    UnknownModel          no window, or no prices, of that model: register it
    ContextTooLarge       the context is over the model's window: hand in less
    SummaryRefused        a summary that would not help: empty, or over its source
    SummarizerFailed      no summary was written: the context stays as it was
    CountingFailed        the provider counted no tokens: take an estimate
    AnswerFailed          a model did not answer: nothing was written
    RecordingFailed       a model's answer could not be recorded: the error has it
    ExportFailed          a user's data could not be written out: nothing is left of it
    ImportFailed          a transcript could not be imported: nothing of it was written
    StoreUnavailable      the database cannot be reached, is busy, full or read-only
    IncompatibleStore     the database is of a newer Refold, or of another program
    InvalidConfiguration  a setting, policy or URL is wrong: nothing was opened

Each carries its numbers as attributes.  No message holds text of an event: what
was refused may be what had to be redacted.
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
    "StaleSession", "StoreUnavailable", "SummarizerFailed", "SummaryRefused",
    "UnknownModel", "UnknownStrategy", "UserNotFound",
]  # fmt: skip


def counted(count: int, what: str, many: str | None = None) -> str:
    """``count`` with its noun, as every message says it: 1 event, 2,000 events."""
    return f"{count:,} {what if count == 1 else many or what + 's'}"


_REMEDIES: Final = {
    errno.EACCES: "check the rights on the file and its folder",
    errno.EPERM: "check the rights on the file and its folder",
    errno.EROFS: "the file system is read-only: name a place that can be written",
    errno.ENOSPC: "free space and try again",
    errno.EDQUOT: "free space within your quota and try again",
    errno.ENOENT: "check that its folder exists",
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
    """What to do about an error of the file system."""
    return _REMEDIES.get(error.errno or 0, "check the path and the disk")


class RefoldError(Exception):
    """The base of every error that Refold raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process too: most take other arguments than they keep.
        return type(self).__new__, (type(self), *self.args), vars(self)


class _Because(RefoldError):
    """Why it is so stands in ``reason``, which holds nothing of a session."""

    _said = "{}"

    def __init__(self, reason: str) -> None:
        super().__init__(self._said.format(reason))
        self.reason = reason


class InvalidEvent(RefoldError, ValueError):
    """The event breaks a rule of its type, or of the session it is for."""


class EventTooLarge(RefoldError):
    """The event is over the hard limit, even after the size guard."""

    def __init__(self, event_type: str, *, size: int, limit: int) -> None:
        super().__init__(
            f"the {event_type} event is {size} bytes after the size guard, the limit "
            f"is {limit}: split it, or raise Limits.event_bytes"
        )
        self.event_type, self.size, self.limit = event_type, size, limit


class RedactionFailed(RefoldError):
    """Redaction could not be completed, so nothing was written (fail closed)."""

    def __init__(self, event_type: str, *, reason: str) -> None:
        super().__init__(
            f"the {event_type} event could not be redacted ({reason}) and was refused: "
            "nothing was written"
        )
        self.event_type, self.reason = event_type, reason


class StaleSession(RefoldError):
    """The stream is not at the seq that the writer last saw."""

    def __init__(self, session_id: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"session {session_id!r} is at seq {actual}, expected {expected}: "
            "read it again and retry"
        )
        self.session_id, self.expected, self.actual = session_id, expected, actual


class LeaseLost(RefoldError):
    """Another worker holds the lease: the write of its former owner is refused."""

    def __init__(self, work: str) -> None:
        super().__init__(
            f"the lease for {work} belongs to another worker by now, so nothing was "
            "written: let that worker finish"
        )
        self.work = work


class IdempotencyConflict(RefoldError):
    """The same idempotency key was used before, for other content."""

    def __init__(self, session_id: str, *, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"this idempotency key was used in session {session_id!r} for other "
            f"content (seq {first_seq} to {last_seq}): use a new key for new content"
        )
        self.session_id, self.first_seq, self.last_seq = session_id, first_seq, last_seq


class SessionNotFound(RefoldError, LookupError):
    """No such session for this user."""

    def __init__(self, user_id: str, session_id: str) -> None:
        super().__init__(
            f"user {user_id!r} has no session {session_id!r}: "
            "store.sessions() and `refold sessions` list all sessions"
        )
        self.user_id, self.session_id = user_id, session_id


class UserNotFound(RefoldError, LookupError):
    """There is nothing of this user in ``database``, which the message names."""

    def __init__(self, user_id: str, *, database: str) -> None:
        super().__init__(
            f"there is nothing of that user in {database}: check the name and the "
            "database, or say that they may be absent (--absent-ok, absent_ok=True)"
        )
        self.user_id, self.database = user_id, database


class SessionClosed(RefoldError):
    """The session was ended and takes no more events."""

    def __init__(self, session_id: str, *, head_seq: int) -> None:
        super().__init__(
            f"session {session_id!r} was ended at seq {head_seq}: "
            "start another, or fork it"
        )
        self.session_id, self.head_seq = session_id, head_seq


class Erased(RefoldError):
    """The user or the session was erased: nothing of it can be read or written."""

    def __init__(self, what: str) -> None:
        said = f"{what} was erased"
        if what == "the user":
            said = "the user was erased; `refold readmit` lets the id be used again"
        super().__init__(said)
        self.what = what

    @property
    def of_user(self) -> bool:
        """Whether the whole user was erased, not a session of theirs."""
        return self.what == "the user"


class NotErased(RefoldError, LookupError):
    """The user was not erased, or not in a way that can be undone."""


class OnHold(RefoldError):
    """A legal hold keeps the user's data: it can be neither erased nor expire."""

    def __init__(self, name: str, reason: str) -> None:
        what = f"the legal hold {name!r} ({reason}) forbids it: release the hold first"
        if name == "freeze":
            what = f"the user is frozen ({reason}): `refold freeze --lift` first"
        super().__init__(what)
        self.name, self.reason = name, reason


class AlreadyDecided(RefoldError):
    """The question to a human has its decision; a second one is not taken."""

    def __init__(self, seq: int, *, decided_at: int) -> None:
        super().__init__(
            f"the question at seq {seq} was decided at seq {decided_at}: that "
            "decision stands"
        )
        self.seq, self.decided_at = seq, decided_at


class Frozen(RefoldError):
    """The user's data is frozen: it can be read, and neither changed nor added to."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is frozen: it can be read, but not changed until "
            "`refold freeze --lift`"
        )
        self.what = what


class Expired(RefoldError, LookupError):
    """A whole text was let go by the retention policy: what its event shows is left."""

    def __init__(self, sha256: str) -> None:
        super().__init__(
            f"the whole text {sha256} expired under the retention policy: its event "
            "keeps only what it shows"
        )
        self.sha256 = sha256


class KeyUnavailable(RefoldError):
    """The key that opens this data is missing, or the one at hand is another."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


class CorruptEvent(RefoldError):
    """What is stored is not what was written."""

    def __init__(self, where: str, *, seq: int, reason: str) -> None:
        super().__init__(
            f"{where} seq {seq}: {reason}; run `refold verify`, and restore the event "
            "from a backup"
        )
        self.where, self.seq, self.reason = where, seq, reason


class SealBroken(_Because):
    """Leaves, tree heads and anchor do not fit together; nothing was sealed."""

    _said = "{}: `refold verify` names what does not fit; nothing was sealed"


class UnknownStrategy(RefoldError, ValueError):
    """No strategy of that name, or a parameter that it does not take."""


class UnknownModel(RefoldError, LookupError):
    """Nothing is known of the model, or not what was asked for (``missing``)."""

    def __init__(self, model: str, *, missing: str = "window") -> None:
        key = "prices" if missing == "prices" else "context_tokens"
        value = "{ input = …, output = … }" if missing == "prices" else "…"
        super().__init__(
            f"the {missing} of model {model!r} is not known: register it with "
            f"refold.strategies.register_model({model!r}, context_tokens=…, prices=…), "
            "or in "
            f'refold.toml under [models."{model}"] with {key} = {value}'
        )
        self.model, self.missing = model, missing


class ContextTooLarge(RefoldError):
    """A context that the model's window cannot take, and no compaction can mend.

    tokens: what it has; ``window`` what it may have, ``over`` how many are too many.
    """

    def __init__(self, tokens: int, window: int, *, helps: str) -> None:
        self.tokens, self.window, self.over = tokens, window, tokens - window
        super().__init__(
            f"the context has {tokens:,} tokens, {self.over:,} more than the window of "
            f"{window:,}: {helps}"
        )


class SummaryRefused(RefoldError):
    """A summary that would not help: the context stays as it was."""

    def __init__(self, reason: str, *, words: int, source_words: int) -> None:
        super().__init__(
            f"the summary was refused ({reason}): {words} words for a source of "
            f"{source_words}; the context stays as it was"
        )
        self.reason, self.words, self.source_words = reason, words, source_words


class SummarizerFailed(_Because):
    """What writes summaries wrote none; ``reason`` holds nothing of the session."""

    _said = "no summary was written, the context stays as it was: {}"


class CountingFailed(_Because):
    """The provider counted no tokens; ``reason`` holds nothing of the context."""

    _said = "the tokens were not counted: {}"


class AnswerFailed(_Because):
    """A model that a rerun asked gave no answer; ``reason`` holds nothing of it."""

    _said = "the model did not answer, nothing was written: {}"


class RecordingFailed(RefoldError):
    """A model answered, and its answer could not be recorded: ``response`` has it.

    ``__cause__`` says why.  Recorded again, an answer is in the session once.
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
    """A user's data could not be written out; nothing of it was left."""


class ImportFailed(RefoldError):
    """A transcript could not be imported; nothing of it was written."""

    def __init__(self, where: str, why: str, *, seq: int | None = None) -> None:
        super().__init__(f"{where}: {why}")
        self.where, self.why, self.seq = where, why, seq


class StoreUnavailable(RefoldError):
    """The database cannot be reached, is busy, full or read-only."""

    def __init__(self, reason: str, *, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason, self.remedy = reason, remedy


class IncompatibleStore(RefoldError):
    """The database is of a newer Refold, or belongs to another program."""


class InvalidConfiguration(RefoldError, ValueError):
    """A setting, a policy or a URL is wrong; nothing was opened."""
