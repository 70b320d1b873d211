"""A plugin for Refold: the tickets of a help desk."""
