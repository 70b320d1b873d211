"""The outside: databases, keys, formats, the command line."""
