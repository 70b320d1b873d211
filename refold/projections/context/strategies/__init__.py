"""The strategies, one rule in each file: what to compact, and what to show."""
