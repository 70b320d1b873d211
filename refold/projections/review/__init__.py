"""When a human is asked to look: rules, what comes before, and what is shown."""
