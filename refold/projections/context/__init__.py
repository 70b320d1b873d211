"""Contexts: what a model is sent of a session, decided and rendered by strategies."""
