"""Comparing strategies: one log walked under each, counted, and nothing written."""
