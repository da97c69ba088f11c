"""``poller sandbox``, ``schema``, ``config example`` and ``keys new``: tools for setting up."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, GlobalOptions
from poller.cli.output import write_json, write_line, write_table
from poller.errors import ConfigurationError
from poller.text import SIGNING_SECRETS

if TYPE_CHECKING:
    from poller.config.settings import Settings

app = CommandLine()
keys_app = CommandLine(name="keys", help="Create signing secrets.")
config_app = CommandLine(name="config", help="Print a commented configuration file.")


@app.command(example="sandbox --records 1000 --profile no-delta", logs="info")
async def sandbox(
    options: GlobalOptions,  # noqa: ARG001 -- the configuration does not count
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: any free port.")] = 8090,
    records: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Records at the start, of all resources together.")
    ] = 500,
    qualifications: Annotated[
        int | None, typer.Option(min=1, help="Qualifications with achievements. Default: depends on --records.")
    ] = None,
    changes_per_second: Annotated[float, typer.Option(min=0, max=100_000, help="Changes that it makes.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same records and changes.")] = 1,
    token: Annotated[str, typer.Option(help="The bearer token that requests need.")] = "sandbox",  # noqa: S107 -- public
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[@RESOURCE],...", help="How it differs or misbehaves, always; see --list.", show_default=False
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[@RESOURCE][=RATE|COUNT],...",
            help="Profiles for some requests: 0.2 of all, or the next 3. Default: 0.1.",
            show_default=False,
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List all profiles and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --list: one JSON object a line.")] = False,
) -> None:
    """Simulate the API over real HTTP, until a signal stops it."""
    from poller.errors import AddressTaken
    from poller.sandbox.data import shared, shares
    from poller.sandbox.faults.registry import chosen
    from poller.sandbox.server import run_sandbox

    if show:
        _write_profiles(json=json)
        return

    def write_address(address: str) -> None:
        write_line(address)
        write_line(f"{records} records at the start: {shared(shares(records, qualifications))}")

    choices = chosen(profile or (), faults or ())
    try:
        await run_sandbox(
            port=port,
            records=records,
            changes_per_second=changes_per_second,
            seed=seed,
            token=token,
            say=write_address,
            choices=choices,
            qualifications=qualifications,
        )
    except AddressTaken as taken:
        raise AddressTaken(f"{taken}; --port chooses another port, --port 0 any free port") from taken


def _write_profiles(*, json: bool) -> None:
    """Write the profiles; as JSON one object a line, ``{"name", "kind", "does"}``."""
    from poller.sandbox.faults.registry import PROFILES

    if json:
        for profile in PROFILES.values():
            write_json({"name": profile.name, "kind": profile.kind, "does": profile.does})
        return
    rows = [(profile.name, profile.kind.value, profile.does) for profile in PROFILES.values()]
    write_table(("profile", "kind", "what it does"), rows)


class Document(StrEnum):
    """A document of ``poller schema``."""

    ASYNCAPI = "asyncapi"
    EVENTS = "events"
    CONFIG = "config"


@app.command(example="schema config")
def schema(
    options: GlobalOptions,
    document: Annotated[
        Document, typer.Argument(metavar="[DOCUMENT]", help="asyncapi, events or config.")
    ] = Document.ASYNCAPI,
) -> None:
    """Print an AsyncAPI or JSON Schema document. The schemas describe the events or the configuration."""
    import msgspec

    from poller.changes.events import events_document
    from poller.config.settings import config_schema
    from poller.control.asyncapi import asyncapi, schemas_of

    if document is Document.CONFIG:
        shown = config_schema()
    elif document is Document.ASYNCAPI:
        shown = asyncapi(_settings_or_example(options))
    else:
        shown = events_document(schemas_of(_settings_or_example(options)))
    write_line(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())


def _settings_or_example(options: GlobalOptions) -> Settings:
    """The configuration; where there is none, an example of a source."""
    from poller.config.load import load
    from poller.control.asyncapi import EXAMPLE

    if options.file() is None and not os.environ.get("POLLER_BASE_URL"):
        return load(None, {**os.environ, **EXAMPLE})
    return options.settings()


@config_app.callback()
def _config() -> None:
    """Make ``example`` a command of its own, though it is the only one."""


@config_app.command("example", example="config example")
def config_example(options: GlobalOptions) -> None:  # noqa: ARG001 -- the configuration does not count
    """Print a commented poller.toml with every key."""
    from importlib.resources import files

    typer.echo((files("poller") / "config" / "example.toml").read_text("utf-8"), nl=False)


_SCHEMES: Final = tuple(SIGNING_SECRETS.values())


def _scheme(text: str) -> str:
    """The scheme of this name, whatever its case."""
    for name in _SCHEMES:
        if name.lower() == text.lower():
            return name
    raise typer.BadParameter(f"expected {' or '.join(_SCHEMES)}")


@keys_app.callback()
def _keys() -> None:
    """Make ``new`` a command of its own, though it is the only one."""


@keys_app.command("new", example="keys new --ed25519")
def new_key(
    options: GlobalOptions,  # noqa: ARG001 -- the configuration does not count
    *,
    ed25519: Annotated[
        bool, typer.Option("--ed25519", help="A key pair: the receiver gets the public key and cannot sign.")
    ] = False,
    scheme: Annotated[
        str | None,
        typer.Option(
            parser=_scheme, metavar="|".join(_SCHEMES), help="How the secret signs.", show_default=_SCHEMES[0]
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the secret to a new file of mode 600; do not show it.", show_default=False
        ),
    ] = None,
) -> None:
    """Create a signing secret and show what the receiver needs. Stores nothing without --output."""
    import secrets

    from poller.delivery.signing import DRAWN, new_secret, public_key, scheme_of

    name = "ed25519" if ed25519 else scheme or _SCHEMES[0]
    if scheme not in {None, name}:
        raise typer.BadParameter(f"--ed25519 and --scheme {scheme} contradict each other")
    chosen, secret = scheme_of(name), new_secret(secrets.token_bytes(DRAWN), name)
    if output is not None:
        _write_new_file(output, f"{secret}\n")
    shown = secret if output is None else f"in {output}"
    write_line(f"secret    {shown}")
    if chosen.public_key:
        write_line(f"receiver  {public_key(secret)}")
    else:
        write_line(f"receiver  {'' if output is None else 'the same, '}{shown}")
    if output is None:
        write_line(
            "Keep the secret in a file of its own (chmod 600), and name the file in secret_files of the subscription."
        )
    else:
        write_line("Name the file in secret_files of the subscription.")
    if chosen.public_key:
        write_line(
            f"The receiver verifies {chosen.version} signatures with its line. It is a public key and no secret."
        )
    else:
        write_line(f"The receiver verifies {chosen.version} signatures with the same secret.")


def _write_new_file(file: Path, text: str) -> None:
    """Write a file that did not exist, readable by its owner alone.

    Raises:
        ConfigurationError: it exists, or cannot be written.
    """
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigurationError(f"--output {file}: exists already and is not overwritten; name another file") from None
    except OSError as error:
        raise ConfigurationError(f"--output {file}: cannot be written: {error.strerror}") from None
