"""``poller receive``: a webhook receiver on this machine that verifies, prints, and drops repeats.

**Invariants**

- It listens on loopback alone. Without a secret it verifies nothing, and says so.
- An event is printed before it is acknowledged, so an event that was not printed comes again.
- With ``--json`` standard output has events alone, as they were received.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, GlobalOptions, Json, utc_now
from poller.cli.output import OutputClosed, OutputFailed, escaped, warn, write_json_text, write_line, write_styled
from poller.errors import AddressTaken, ConfigurationError, CredentialUnusable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from poller.cli.output import Line
    from poller.client import ReceivedEvent, WebhookRefused

_LOOPBACK: Final = "127.0.0.1"
_PUBLIC_KEY: Final = "whpk_"

app = CommandLine()


@app.command(example="receive --secret-file secret")
async def receive(
    options: GlobalOptions,  # noqa: ARG001 -- the configuration does not count
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: any free port.")] = 8000,
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Holds the signing secret or its public key; of several, each counts. Default: nothing is verified.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Receive webhooks and print one line an event, until Ctrl-C. Verifies signatures and drops repeats."""
    from poller.client import Receiver
    from poller.clock import Clock
    from poller.http.server import listening
    from poller.lifecycle import stopped_by_signals

    files = secret_file or []
    secrets = [_secret(file) for file in files]
    with stopped_by_signals() as stop:
        printer = EventPrinter(stop, json=json)
        receiver = Receiver(printer.show, secrets or None, on_refusal=_warn_refused)
        try:
            async with listening(receiver, _LOOPBACK, port, clock=Clock()) as url:
                _introduce(f"{url}/", files, secrets, json=json)
                await stop.wait()
        except AddressTaken as taken:
            raise AddressTaken(f"{taken}; --port chooses another port, --port 0 any free port") from taken
    printer.raise_failure()


def _secret(path: Path) -> str:
    """The secret in a file.

    Raises:
        ConfigurationError: the file cannot be read, or holds no secret; names the file.
    """
    from poller.auth.base import SecretFile
    from poller.client import MalformedSecret
    from poller.client.signatures import SignatureVerifier

    file = SecretFile(path, "signing secret")
    try:
        SignatureVerifier(text := file.text())
    except CredentialUnusable as error:
        raise ConfigurationError(f"--secret-file: {error}") from None
    except MalformedSecret as error:
        raise ConfigurationError(f"--secret-file: {file.origin} cannot be used: {error}") from None
    return text


def _introduce(url: str, files: Sequence[Path], secrets: Sequence[str], *, json: bool) -> None:
    """Show the URL and how events come here; with ``--json`` on standard error."""
    from shlex import quote

    write = warn if json else write_line
    signing = f"--secret-file {quote(str(files[0]))}" if files else "--no-secret"
    if any(secret.startswith(_PUBLIC_KEY) for secret in secrets):
        signing = "--secret-file FILE"  # of the private key, which is not here
    write(url)
    write(f"To subscribe: poller subscriptions add receiver {url} --allow-private {signing}")
    if not secrets:
        warn("NOT VERIFIED: any program that reaches this port can send events; --secret-file FILE verifies signatures")


def _warn_refused(refused: WebhookRefused) -> None:
    warn(f"a request was refused with {refused.status}: {refused}")


class EventPrinter:
    """Prints events; when standard output is closed it stops the command, and acknowledges nothing more."""

    def __init__(self, stop: asyncio.Event, *, json: bool) -> None:
        """Begin; ``stop`` is set when nothing more can be printed."""
        self._stop = stop
        self._json = json
        self._width = 0
        self._failure: OutputClosed | OutputFailed | None = None

    def raise_failure(self) -> None:
        """Raise what has stopped it, if anything has."""
        if self._failure is not None:
            raise self._failure

    async def show(self, event: ReceivedEvent) -> None:
        """Print an event."""
        import asyncio

        try:
            self._write(event)
        except (OutputClosed, OutputFailed) as failure:
            self._failure = failure
            self._stop.set()
            await asyncio.get_running_loop().create_future()  # no answer: the event was not printed

    def _write(self, event: ReceivedEvent) -> None:
        if self._json:
            write_json_text(_one_line(event.to_json()))
            return
        feed = event.get_source().rstrip("/").rpartition("/")[2]
        self._width = max(self._width, len(feed))
        write_styled(self._line(event, feed))

    def _line(self, event: ReceivedEvent, feed: str) -> Line:
        from poller.cli.event_lines import Unreadable, event_line, read_event, readable

        try:
            with readable(written := event.to_json(), feed=feed, entry_id=event.get_id()):
                view = read_event(written)
                return event_line(view, escaped(feed), feed_width=self._width, today=utc_now().date().isoformat())
        except Unreadable:  # an event of another program
            at = f"{utc_now():%H:%M:%S}.000"
            rest = f"{escaped(event.get_type())}  {escaped(event.get_subject() or event.get_id())}"
            return [(at, "dim"), (f"  {escaped(feed):<{self._width}}  ", ""), (rest, "")]


def _one_line(event: bytes) -> str:
    """The event's JSON in one line; numbers and texts as they are."""
    import msgspec

    try:
        return msgspec.json.format(event, indent=-1).decode()
    except msgspec.DecodeError:  # valid for Python, as half of a surrogate pair is
        from json import dumps, loads

        return dumps(loads(event))
