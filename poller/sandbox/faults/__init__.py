"""The ways in which the simulated API differs or misbehaves.

``base`` says what a profile is, ``registry`` lists them all and joins the chosen ones; the other modules are the
profiles.
"""
