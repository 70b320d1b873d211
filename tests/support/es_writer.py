"""A process that records events of an application, for races of several processes."""

from __future__ import annotations

import sys

from tests.support.eventsourcing import factory, stored_event


def begin(url: str, name: str) -> None:
    """Wait for a line, create the application's tables, and record one event."""
    print("ready", flush=True)
    sys.stdin.readline()
    with factory(url, name) as application:
        (number,) = (
            application.application_recorder().insert_events([stored_event()]) or ()
        )
        print(number, flush=True)
        application.close()


def pour(url: str, name: str, count: str) -> None:
    """Wait for a line, record ``count`` events one by one, then two in one call."""
    application = factory(url, name)
    recorder = application.application_recorder()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(count)):
        recorder.insert_events([stored_event()])
        recorder.insert_events([stored_event(), stored_event()])
    application.close()
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        begin(*sys.argv[2:])
    else:
        pour(*sys.argv[2:])
