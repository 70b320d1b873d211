"""What is computed from the log and from nothing else: pure folds, no I/O."""
