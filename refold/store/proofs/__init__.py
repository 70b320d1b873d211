"""Proofs of the log, of contexts and of runs, and the record of uses."""
