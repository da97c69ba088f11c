"""What OpenTelemetry has to say of its own troubles, told in our log: seldom, and without what it was given to keep.

Law: one warning in :data:`EVERY` seconds, however often a collector fails; the next one says how many were left out. No
value of the headers that authorize us at the collector is in it, however the text has come by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import structlog

from poller.hiding import hidden, one_line, without_credentials

EVERY: Final = 60.0
"""Seconds between two warnings."""

_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_SECRET: Final = 4  # characters; what is shorter guards nothing
_SPEAKERS: Final = ("opentelemetry", "urllib3", "requests")  # the last two are what it sends by

_log = structlog.get_logger("poller.tracing")


class Complaints(logging.Handler):
    """Takes the place of what these libraries would log by themselves."""

    def __init__(self, secrets: tuple[str, ...], clock: Callable[[], float]) -> None:
        """Take what is never shown, and seconds that only go forward."""
        super().__init__(logging.WARNING)
        self._secrets = secrets
        self._clock = clock
        self._silent_until: float | None = None
        self._left_out = 0
        self.silent = False

    def silence(self) -> None:
        """Tell nothing any more."""
        self.silent = True

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it, or count it. The lock of a handler is held here."""
        if self.silent:
            return
        now = self._clock()
        if self._silent_until is not None and now < self._silent_until:
            self._left_out += 1
            return
        self._silent_until = now + EVERY
        left_out, self._left_out = self._left_out, 0
        more = {"left_out": left_out} if left_out else {}
        _log.warning("tracing fails", error=self._text(record), **more)

    def _text(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return one_line(without_credentials(hidden(text, *self._secrets)))


@contextmanager
def complaining(environ: Mapping[str, str], clock: Callable[[], float]) -> Iterator[Complaints]:
    """While the block runs, all that these libraries say comes through here.

    After it they speak as before, unless it was silenced: then something of them is left, and stays silent.
    """
    complaints = Complaints(secrets_of(environ), clock)
    speakers = [logging.getLogger(name) for name in _SPEAKERS]
    before = [(speaker.level, speaker.propagate) for speaker in speakers]
    for speaker in speakers:
        speaker.addHandler(complaints)
        speaker.setLevel(logging.WARNING)
        speaker.propagate = False
    try:
        yield complaints
    finally:
        if not complaints.silent:
            for speaker, (level, propagate) in zip(speakers, before, strict=True):
                speaker.removeHandler(complaints)
                speaker.setLevel(level)
                speaker.propagate = propagate


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """All that the headers for the collector hold, as it is written, decoded, and in its parts."""
    written = [environ.get(name, "").strip() for name in _HEADERS]
    pairs = [pair.strip() for text in written for pair in text.split(",")]  # one without "=" is complained of by itself
    values = [pair.partition("=")[2].strip() for pair in pairs]
    found = {one for text in (*written, *pairs, *values) for one in (text, unquote(text))}
    found |= {part for one in found for part in one.split()[1:]}
    return tuple(one for one in found if len(one) >= _SECRET)
