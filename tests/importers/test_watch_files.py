"""A watch returns each file once it has changed, and has rested or changed for long."""

from __future__ import annotations

from pathlib import Path

from refold.adapters.importers.watch import Watch


def test_a_file_is_returned_when_it_rests(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1")
    watch = Watch(lambda: [path])

    assert watch.take() == []
    path.write_text("12")
    assert watch.take() == []
    assert watch.take() == [path]
    assert watch.take() == []


def test_a_file_that_never_rests_is_returned_sometimes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    watch = Watch(lambda: [path])

    returned = 0
    for size in range(1, 31):
        path.write_text("x" * size)
        returned += len(watch.take())

    assert 4 <= returned <= 6


def test_a_file_that_was_not_imported_is_returned_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1")
    watch = Watch(lambda: [path])
    watch.take()
    watch.take()

    watch.put_back(path)

    assert watch.take() == []
    assert watch.take() == [path]


def test_a_file_that_is_gone_is_left_out(tmp_path: Path) -> None:
    watch = Watch(lambda: [tmp_path / "gone.jsonl"])

    assert [watch.take(), watch.take()] == [[], []]


def test_the_journal_of_a_database_and_the_events_of_a_conversation_count(
    tmp_path: Path,
) -> None:
    database = tmp_path / "opencode.db"
    state = tmp_path / "base_state.json"
    for path in (database, state):
        path.write_text("1")
    (tmp_path / "events").mkdir()
    watch = Watch(lambda: [database, state])
    watch.take()
    watch.take()

    (tmp_path / "opencode.db-wal").write_text("1")
    watch.take()
    assert watch.take() == [database]
    (tmp_path / "events" / "event-00000.json").write_text("1")
    watch.take()
    assert watch.take() == [state]
