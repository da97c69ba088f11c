"""The rules: what a record is, when two are equal, what a change is called, what events and commits hold.

Everything here is pure: no await, clock, randomness, environment, network or log. What it needs is passed in.
"""
