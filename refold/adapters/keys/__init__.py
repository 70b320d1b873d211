"""Keys: the ring of users and sessions, the master key, and where they are kept."""
