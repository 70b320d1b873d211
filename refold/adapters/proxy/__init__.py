"""A recording proxy between a client and a provider."""
