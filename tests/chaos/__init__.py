"""Chaos: breaks the running program by every fault in a catalogue, and judges it from outside.

A *fault* is one way to break something, a *strike* is one occurrence of it, a *chapter* is a scene of its own with a
number of strikes of one fault. The scene is :mod:`tests.chaos.stage`, the faults are in :mod:`tests.chaos.faults` and
in the table :mod:`tests.chaos.catalogue`, the judges are in :mod:`tests.harness`.
"""
