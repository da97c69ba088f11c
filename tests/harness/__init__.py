"""What the end-to-end scenes are made of: real processes, a gate before the source, and a checker that trusts nobody.

``json_values``, ``history`` and ``checker`` are pure and import nothing of the program: they compare what the source
says it did with what the streams say happened.
``requests``, ``delivered`` and ``deliveries`` are so, too: they compare what the streams say with what sinks were sent.
"""
