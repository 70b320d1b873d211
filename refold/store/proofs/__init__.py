"""What proves: the log of itself, of contexts and runs, and the record of its uses."""
