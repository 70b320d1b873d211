"""The commands, each in a module that loads what it needs when it runs."""
