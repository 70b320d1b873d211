"""Claude: what asks it, through the SDK of its maker."""
