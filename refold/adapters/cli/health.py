"""The health and the metrics of a worker, served on loopback for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from refold.adapters.cli import output
from refold.domain.errors import InvalidConfiguration
from refold.store.work.workers import STUCK_SEC, Worker


class _WorkerMetrics(Collector):
    """Reads the state of a worker each time that its metrics are requested."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        worker = self._worker
        yield GaugeMetricFamily(
            "refold_worker_silent_seconds",
            "Seconds since the worker last made progress.",
            worker.silent_sec(),
        )
        yield GaugeMetricFamily(
            "refold_worker_failing",
            "Number of parts of the work whose last attempt failed.",
            len(worker.failing),
        )
        overdue = GaugeMetricFamily(
            "refold_worker_overdue_seconds",
            "Seconds for which a duty has been overdue.",
            labels=["duty"],
        )
        overdue_seconds = worker.overdue()
        for duty in worker.duties:
            overdue.add_metric([duty], overdue_seconds.get(duty, 0.0))
        yield overdue
        units = CounterMetricFamily(
            "refold_worker_units",
            "Number of tasks, by their duty and outcome.",
            labels=["duty", "came"],
        )
        for (duty, outcome), count in sorted(worker.counts.items()):
            units.add_metric([duty, outcome], count)
        yield units


def _problems(worker: Worker, *, of_duties: bool) -> list[str]:
    """Return the problems of a worker, each as a line of a comment.

    of_duties: whether failing and overdue duties count.
    """
    problems: list[str] = []
    silent = worker.silent_sec()
    if silent > STUCK_SEC:
        problems.append(f"# no progress for {silent:.0f} seconds\n")
    if of_duties:
        for name in sorted(worker.failing):
            problems.append(f"# {name}: the last attempt failed\n")
        for duty, seconds in sorted(worker.overdue().items()):
            problems.append(f"# {duty}: overdue for {seconds:.0f} seconds\n")
    return problems


@contextmanager
def served(worker: Worker, port: int) -> Iterator[int]:
    """Serve the worker's health and metrics on loopback while the block runs.

    Yields the port, which is a free one for 0.  Except for /metrics, the status is 503
    if the worker is stuck; /health/ready is 503 also if a duty fails or is overdue.
    """
    registry = CollectorRegistry()
    registry.register(_WorkerMetrics(worker))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            problems: list[str] = []
            if self.path != "/metrics":
                is_ready_check = self.path.endswith("/ready")
                problems = _problems(worker, of_duties=is_ready_check)
            self.send_response(503 if problems else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("".join(problems).encode() + generate_latest(registry))

        def log_message(self, *_: object) -> None: ...

    try:
        listening = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        reason = str(error.strerror).lower()
        raise InvalidConfiguration(
            f"port {port} cannot be used ({reason}): choose another"
        ) from None
    with listening as server:
        Thread(target=server.serve_forever, daemon=True).start()
        output.complain(f"health: http://127.0.0.1:{server.server_port}/health")
        yield server.server_port
        server.shutdown()
