"""SQLite and PostgreSQL behind one recorder: one schema, one file per dialect."""
