"""The simulated Read API over real HTTP, for demonstrations, tests and benchmarks.

``history`` and ``api`` are pure: versions of records, and what the API says about them. ``data`` makes up their
content. ``server`` and ``control`` put them on a socket. ``faults`` are the ways in which the API misbehaves, each a
function around :func:`~poller.sandbox.api.answer`. Start at :mod:`poller.sandbox.server`.

Nothing here imports the rest of the program: what checks the poller must not share its mistakes.
"""
