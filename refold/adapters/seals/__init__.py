"""Seals: the tree over the ends of all streams, its proofs, and its anchors."""
