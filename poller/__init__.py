"""Turns a polled Qualification and Employment API into CloudEvents on Redis streams.

The packages follow the path of a record: ``source`` fetches pages, ``changes`` compares records with their snapshots,
``store`` commits snapshots and events atomically, ``delivery`` sends events to sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(name)
        from importlib.metadata import version  # noqa: PLC0415 -- slow, and `poller --help` does not need it

        return version("poller")
