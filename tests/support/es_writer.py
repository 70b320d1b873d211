"""A process that records events of an application, for tests that let several race."""

from __future__ import annotations

import sys

from tests.support.eventsourcing import factory, stored


def begin(url: str, name: str) -> None:
    """Wait for a line, make the application's tables, record one event."""
    print("ready", flush=True)
    sys.stdin.readline()
    with factory(url, name) as application:
        (number,) = application.application_recorder().insert_events([stored()]) or ()
        print(number, flush=True)
        application.close()


def pour(url: str, name: str, count: str) -> None:
    """Wait for a line, record ``count`` events, each alone, then two at once."""
    application = factory(url, name)
    recorder = application.application_recorder()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(count)):
        recorder.insert_events([stored()])
        recorder.insert_events([stored(), stored()])
    application.close()
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        begin(*sys.argv[2:])
    else:
        pour(*sys.argv[2:])
