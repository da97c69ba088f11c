"""Turns a polled Qualification and Employment API into CloudEvents on Redis streams.

The packages read like the path that a record takes: ``source`` fetches pages, ``changes`` compares them with what was
seen before, ``store`` commits snapshots and events together or not at all, ``service`` keeps it going.
"""

from importlib.metadata import version

__version__ = version("poller")
