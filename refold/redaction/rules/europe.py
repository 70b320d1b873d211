"""Pack ``pii-eu``: numbers that states of Europe give to people and companies."""

from refold.redaction.rules.rule import load

PII_EU = load(globals(), "pii_eu")
