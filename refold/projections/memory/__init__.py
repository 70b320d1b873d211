"""Procedural memory: what worked, with which tools, how often, proved by which events.

It is a projection.  Each session is folded into what it shows by itself
(``SessionFacts``); the memory of a user is what all of them show together.  Nothing
else goes into it, so that it comes out the same whenever and in whatever order it is
made, and a session that is erased takes with it just what came from there.
"""
