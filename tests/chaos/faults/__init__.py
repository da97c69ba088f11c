"""The faults, one module each, with a ``FAULT`` that describes it and the function that causes it."""
