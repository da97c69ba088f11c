"""The configuration: one frozen value from a TOML file and the environment.

Start at :func:`poller.config.load.load`, the only way in, and :class:`poller.config.settings.Settings`, the result.

**Invariants**

- All problems are reported together, and none shows a secret.
- Nothing here reads a secret, resolves a name or connects. Nothing is read when the package is imported.
"""
