"""The parts of the end-to-end scenes: real processes, a gate before the source, and an independent checker.

``json_values``, ``history`` and ``checker`` are pure and import nothing of the program: they compare the source's log
with the streams. So are ``requests``, ``delivered`` and ``deliveries``: they compare the streams with the requests at
the sinks.
"""
