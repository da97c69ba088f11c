"""Client library: programs read events and receive webhooks with it.

It needs no configuration file, and imports nothing else of the program.
"""
