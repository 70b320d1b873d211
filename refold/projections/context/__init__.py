"""Contexts: the views of a session for a model, which strategies decide on."""
