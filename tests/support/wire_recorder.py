"""A process that records what it reads from its input, for tests that kill it.

Each line is an act: a request that begins, or its answer.  The process prints a line
when the act is recorded.
"""

from __future__ import annotations

import json
import sys

import refold
from refold.adapters.proxy.exchange import Exchange
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy_lock import running_proxy
from tests.support.wire import exchange_of, reply


def main(url: str, user_id: str) -> None:
    """Record until the input ends."""
    with refold.open(url) as store, running_proxy():
        recorder = StoreRecorder(store, user_id=user_id)
        exchanges: dict[str, Exchange] = {}
        print("ready", flush=True)  # noqa: T201  # a process speaks to its test by printing
        for line in sys.stdin:
            act = json.loads(line)
            name = act["id"]
            if act["act"] == "begin":
                exchanges[name] = exchange_of(
                    name, act["body"].encode(), act["headers"]
                )
                recorder.begin(exchanges[name])
            else:
                answer = reply(*act["answer"], message_id=act.get("message_id", ""))
                recorder.finish(exchanges.pop(name), answer)
            print(name, flush=True)  # noqa: T201  # the same
        recorder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
