"""The domain: events, the rules of a session, the hash chain, errors, and ports."""
