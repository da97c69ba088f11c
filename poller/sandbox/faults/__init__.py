"""The ways in which the simulated API can differ from the well-behaved one, or misbehave.

``profile`` says what a profile is, ``table`` lists them all, ``choice`` reads names and joins what was chosen; the
other modules are the profiles themselves, by what they are about.
"""
