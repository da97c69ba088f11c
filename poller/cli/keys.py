"""``poller keys``: signing secrets, and what a receiver needs of them."""

from __future__ import annotations

from typing import Annotated

import typer

from poller.cli.help import CommandLine
from poller.cli.options import Config, Format, Verbosity

app = CommandLine(help="Signing secrets: makes new ones.")


@app.callback()
def _keys() -> None:
    """Keep ``new`` a command of its own, though there is no other."""


@app.command()
def new(
    *,
    ed25519: Annotated[
        bool, typer.Option("--ed25519", help="A key pair: the receiver gets the public key and cannot sign itself.")
    ] = False,
    config: Config = None,  # noqa: ARG001 -- every command takes these
    log_format: Format = None,  # noqa: ARG001 -- likewise
    log_level: Verbosity = None,  # noqa: ARG001 -- likewise
) -> None:
    """Makes a signing secret and shows what the receiver needs of it; keeps neither."""
    import secrets  # noqa: PLC0415 -- late

    from poller.cli.output import say  # noqa: PLC0415 -- late
    from poller.delivery.signing import new_private_secret, new_secret, public_key  # noqa: PLC0415 -- late

    drawn = secrets.token_bytes(32)
    secret = new_private_secret(drawn) if ed25519 else new_secret(drawn)
    say(f"secret    {secret}")
    say(f"receiver  {public_key(secret) if ed25519 else secret}")
    say("Keep the secret in a file of its own (chmod 600) and name that in secret_files of the subscription.")
    if ed25519:
        say("The receiver verifies v1a signatures with its line, a public key, which may be shown to anybody.")
    else:
        say("The receiver verifies v1 signatures with the same secret.")
