"""Declarative memory: what verdicts on a user's work show, and what the user prefers.

Only for who consented, and never a text: names of subjects, topics and error types,
numbers, times, and where it is seen.
"""
