"""Runs a proxy in a process of its own: ``proxy_process.py UPSTREAM ANSWER_BYTES``.

It prints its port, and ends with its stdin.
"""

import sys

from refold.adapters.proxy.recording import Limits
from tests.support.proxying import Proxied

if __name__ == "__main__":
    upstream, answer_bytes = sys.argv[1:]
    proxy = Proxied(upstream, limits=Limits(answer_bytes=int(answer_bytes)))
    print(proxy.port, flush=True)  # noqa: T201  # a process reports to its test so
    sys.stdin.read()
    proxy.close()
