"""Evidence: what was planned, what was seen, and what it proves.

Knows frozen records, the store that keeps them, and the two files a person takes away: the reproducer and the issue
draft. It runs no operator and imports no torch, so that a stored run opens on a laptop.
"""
