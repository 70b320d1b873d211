"""The recording proxy, which passes an agent's requests to a provider and records them.

The package is loaded only by ``refold run`` and ``refold proxy``.
"""
