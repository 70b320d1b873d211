"""Projections: pure functions of the log, without I/O."""
