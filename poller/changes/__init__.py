"""Pure rules: what a record is, what changed, and what a commit holds.

No await, clock, randomness, environment, network or log. Start at :mod:`poller.changes.plan`.
"""
