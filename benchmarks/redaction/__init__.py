"""What redaction costs and what it finds, beside other tools, on data made here.

    python -m benchmarks.redaction [--quick] [--data DIR] [--json FILE] [--plot FILE]

All corpora are generated from a seed, or read from the running interpreter's own
standard library: the same interpreter gets the same bytes every time.
"""
