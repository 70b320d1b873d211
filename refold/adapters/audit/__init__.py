"""The audit log: accesses are named by keyed hashes, and written behind the store."""
