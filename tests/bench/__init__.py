"""What the program costs, beside what the machine could do at most: ``python -m tests.bench``.

Machines are noisy and differ, so every figure stands beside a raw limit measured in the same run, on the same server
and the same data, and the ratio is what counts. Nothing here is a test.
"""
