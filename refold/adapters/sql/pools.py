"""SQLAlchemy's engine over the connections to a SQLite file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from refold.adapters.sql import compiled, forks, lent
from refold.adapters.sql.files import FileConnection, WatchedFile, connect
from refold.adapters.sql.forks import Holder
from refold.domain.errors import StoreUnavailable

_USE: Final = "refold_use"  # where a connection of the pool has its use


class FilePool(QueuePool):
    """Connections to a file, each of which is in use from checkout to return."""

    def __init__(self, creator: Any, *, holder: Holder, **settings: Any) -> None:
        super().__init__(creator, **settings)
        self._holder = holder

    def _do_get(self) -> Any:
        use = forks.begin_use(self._holder)
        try:
            record = super()._do_get()
        except BaseException:
            forks.end_use(use)
            raise
        cast("dict[str, forks.Use]", record.record_info)[_USE] = use
        return record

    def _do_return_conn(self, record: Any) -> None:
        use = cast("dict[str, forks.Use]", record.record_info).pop(_USE, None)
        try:
            super()._do_return_conn(record)
        finally:
            if use is not None:
                forks.end_use(use)

    def recreate(self) -> FilePool:
        """Return an empty pool with the same settings."""
        return FilePool(
            self._creator,
            holder=self._holder,
            pre_ping=self._pre_ping,
            recycle=self._recycle,
            echo=self.echo,
            logging_name=self._orig_logging_name,
            reset_on_return=self._reset_on_return,
            _dispatch=self.dispatch,
            dialect=self._dialect,
        )


def engine_of_file(
    watched: WatchedFile,
    holder: Holder,
    on_connect: Callable[[FileConnection], None],
) -> Engine:
    """Return an engine with connections to a file, each prepared by ``on_connect``.

    A transaction with the write lock first checks that the file is in its place.
    """

    def begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("refold_begin", "DEFERRED")
        if not mode:
            return
        connection.exec_driver_sql(f"BEGIN {mode}")
        if mode == "IMMEDIATE":
            driver = cast("FileConnection", connection.connection.driver_connection)
            try:
                watched.check(driver)
            except StoreUnavailable:
                driver.rollback()
                raise

    pool = FilePool(partial(connect, watched, on_connect), holder=holder)
    engine = create_engine("sqlite://", pool=pool)
    compiled.share(engine)
    lent.close_when_returned(engine)
    event.listen(engine, "begin", begin)
    return engine
