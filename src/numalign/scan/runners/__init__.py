"""Runners bring cells to worker processes and bring observations back. They know nothing of what a cell computes."""
