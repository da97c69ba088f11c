"""The Read API simulated over real HTTP: something to poll in demonstrations, end-to-end tests and benchmarks.

``resources``, ``listing``, ``model``, ``tokens``, ``reading`` and ``answer`` are pure: a history of versions and what
the API says about it. ``records``, ``seed`` and ``mutate`` make its content up. ``server``, ``control`` and ``serving``
put it on a socket. ``layers``, ``switches`` and ``profiles`` are the ways in which it misbehaves, each a function
around ``answer``; ``switching`` and ``wire`` are their shells. ``receiver`` is the other side: who gets webhooks.

Nothing here imports the rest of the program, on purpose: what checks the poller must not share its mistakes.
"""
