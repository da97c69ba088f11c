"""Deterministic simulation: the whole system in one process, on virtual time, repeatable from a seed.

The program runs unchanged, from ``poller.app.run`` down, on an event loop (:mod:`.loop`) whose time is virtual and
whose connections are in memory (:mod:`.network`, :mod:`.transport`). Several hosts (:mod:`.host`) share the loop; each
handle belongs to one. They have clocks of their own (:mod:`.clock`), which libraries see, too (:mod:`.system`). All
chance comes from one seed, so a run is repeated by naming it.

Start with :mod:`.loop`.
"""
