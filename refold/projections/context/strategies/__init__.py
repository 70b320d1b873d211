"""The strategies: each decides what of a session a model is sent, by its own rule."""
