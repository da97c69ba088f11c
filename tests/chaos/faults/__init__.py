"""The faults, one module each. Each has a ``FAULT``, which says what it is for, and the function that makes it."""
