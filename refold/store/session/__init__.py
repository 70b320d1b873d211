"""One session: the object that an agent loop uses, and the objects that hang on it."""
