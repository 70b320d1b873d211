"""Memory of users: their consent, what their sessions show, and advice from it."""
