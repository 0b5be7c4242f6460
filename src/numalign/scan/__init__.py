"""The scan: plan -> run -> judge -> conclude.

``plan`` crosses cases, dtypes, devices and directions; ``worker`` runs one cell; ``runners`` bring cells to workers;
``judge`` orders cells and turns observations into verdicts; ``conclude`` proves a verdict with a reproducer and writes
it down.
"""
