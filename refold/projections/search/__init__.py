"""Search: the terms of texts, an index without text, queries, and their ranking."""
