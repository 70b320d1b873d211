"""Fuzz one target, guided by what it covers: ``make fuzz TARGET=redact-text``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["refold"]):
    from tests.fuzz.targets import FUZZED


def main() -> None:
    """Fuzzes until the time is over. A fault is printed with its input."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("target", choices=sorted(FUZZED))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="kept from run to run")
    options = parser.parse_args()
    fuzzed = FUZZED[options.target]
    corpus = options.corpus or Path(tempfile.mkdtemp(prefix="refold-fuzz-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(fuzzed.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    fuzzer_options = [
        f"-max_total_time={options.seconds}",
        "-max_len=20000",
        "-timeout=20",
    ]
    atheris.Setup([sys.argv[0], *fuzzer_options, str(corpus)], fuzzed.target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
