"""Checks that a rule names: they judge what its pattern found."""
