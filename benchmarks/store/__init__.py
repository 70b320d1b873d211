"""What storing and reading cost, beside the raw driver and other session stores.

    python -m benchmarks.store [--quick] [--only PART] [--engine NAME] [--events N]

All run on the same server or in the same folder, with the same payloads, in turn.
"""
