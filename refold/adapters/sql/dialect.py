"""What differs between engines: each answers these in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Heads,
    Rewrite,
    WriteOutcome,
)
from refold.adapters.sql.tables import Tables
from refold.domain.errors import RefoldError
from refold.domain.ids import StreamId

T = TypeVar("T")
NOBODY: Final = ""  # whose rows are those of a table that has none of users


class Dialect(Protocol):
    """One database engine; ``mark`` stands for a value in its SQL."""

    name: str
    tables: Tables
    mark: str
    ends_of_span: tuple[str, str]
    shared: str  # keeps what was selected as it is until the statement is committed
    place: str  # names a row by where it lies
    searchable: bool  # this process can read its files

    def for_each_span(self, spans: str, columns: str, where: str) -> str:
        """A query of events ``e``, for each span ``s`` in a column of ``v``.

        ``where`` tells which by the ``ends_of_span``, first and last.
        """
        ...

    def engine(self) -> Engine:
        """The pool of connections, made on first use."""
        ...

    def reading(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """A connection that only reads: each statement is of one moment by itself.

        ``user_id`` says whose rows; None is all users', NOBODY is a table without any.

        Raises StoreUnavailable for all users' where one sees only one at a time.
        """
        ...

    def writing(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """A transaction that can write from its first statement on."""
        ...

    def casual(self) -> AbstractContextManager[Connection]:
        """A transaction for rows that a power cut may take; no commit waits for it."""
        ...

    def has_sessions(self) -> bool:
        """Whether there is any session, of whomever."""
        ...

    def translate(self, error: Exception) -> RefoldError | None:
        """The error to raise for what the driver raised, or None to let it pass."""
        ...

    def prepare(self, connection: Connection) -> None:
        """Check, inside the migration's transaction, that the database is ours."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Let one migration run at a time."""
        ...

    def guard_events(self, connection: Connection) -> None:
        """Make the database itself refuse UPDATE and DELETE on events.

        But for ``rewrite``, in its own transaction, and then for no more than the
        ciphertext.
        """
        ...

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Write each batch or nothing of it, in one commit; an outcome for each."""
        ...

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        """Write what ``build`` makes of the head while the head cannot move."""
        ...

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        """Do what ``build`` makes of the session's heads while none can move."""
        ...

    def flush(self) -> None:
        """Return when all that was committed survives a power cut."""
        ...

    def fetch(
        self, user_id: str, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query in the driver's own SQL, each value where a mark is.

        All of them are of that user.
        """
        ...

    def retrying(self, attempt: Callable[[], T]) -> T:
        """Do ``attempt``, and again if a connection broke that may come back."""
        ...

    def settled(self) -> Any:
        """An SQL condition on ``position``: no transaction can still write below."""
        ...

    def among(self, places: Any) -> Any:
        """An SQL condition: the row lies where the query ``places`` says."""
        ...

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite what was deleted, as far as that is possible; says what was done.

        ``vacuum`` writes tables anew, which keeps others from them meanwhile.
        """
        ...

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """In how many of its files, and of how many names, any stands."""
        ...

    def size(self, connection: Connection) -> int:
        """Bytes of the whole database on disk."""
        ...

    def close(self) -> None: ...


class ErrorsTranslated(AbstractContextManager[None]):
    """Turns what the driver raises inside into errors of ours."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, RefoldError):
            ours = self._dialect.translate(error)
            if ours is not None:
                raise ours from None
