"""What the log proves: of itself, of a context, of a run that is made again."""
