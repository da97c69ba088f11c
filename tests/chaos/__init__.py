"""Chaos: the program as it is run, broken in every way there is a name for, and judged from outside.

A *fault* is one way to break something, a *strike* is one time that it is done, a *chapter* is a scene of its own with
so many strikes of one fault. The scene is :mod:`tests.chaos.stage`, the faults are in :mod:`tests.chaos.faults` and in
the table :mod:`tests.chaos.catalogue`, who judges is in :mod:`tests.harness`.
"""
