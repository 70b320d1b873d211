"""Files of a run: which events read and wrote a file, and who wrote each line."""
