"""Pack ``pii-us``: numbers that the United States and its banks give to people."""

from refold.redaction.rules.rule import load

PII_US = load(globals(), "pii_us")
