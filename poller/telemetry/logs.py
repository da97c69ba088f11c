"""Logs by structlog to standard error, as text or JSON, without secrets.

Each round and each attempt is one wide event with all its details. Levels:
``debug``: details. ``info``: normal operation. ``warning``: worth investigating. ``error``: needs action. Libraries
that log through the standard library come out in the same form, from WARNING up: httpx would log each URL at INFO.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from poller.telemetry import tracing
from poller.text import without_credentials

Format = Literal["console", "json"]
Level = Literal["debug", "info", "warning", "error"]

_LOUD: Final = ("httpx", "httpcore", "aiohttp", "apscheduler", "uvicorn", "asyncio")
_WIDE: Final = frozenset({"round", "attempt"})
_FIRST: Final = ("feed", "subscription", "mode", "step", "ok", "error", "reason")
_SECRET_NAME: Final = re.compile(r"(?i)(authorization|password|passwd|secret|api[-_]?key|credential|bearer|^token$)")


class LogOnce:
    """Logs a failure when it begins or changes, and once when it is over."""

    def __init__(self, log: Any, event: str, **fields: object) -> None:
        """Log to this logger, with this event for failures and these fields in each line."""
        self._log = log
        self._event = event
        self._fields = fields
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """The failure that lasts; None: there is none."""
        return self._error

    def failed(self, error: str) -> None:
        """Log a failure, unless it is the same as the last one."""
        if error != self._error:
            self._error = error
            self._log.warning(self._event, error=error, **self._fields)

    def worked(self) -> None:
        """Log that the failure is over, if there was one."""
        if self._error is not None:
            self._error = None
            self._log.info("works again", failure=self._event, **self._fields)


def redacted(value: Any) -> Any:
    """A value without credentials, and without user information and query strings of URLs."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: "[redacted]" if _SECRET_NAME.search(str(key)) else redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


def _traced(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids of the current span, if there is one."""
    if carried := tracing.current().carried:
        event["trace_id"], event["span_id"] = tracing.ids_of(carried)
    return event


def _redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    cleaned: dict[str, Any] = redacted(dict(event))
    return cleaned


def _redact_text(_logger: Any, _method: str, event: Any) -> str:
    """Redact the final text, because the console renders tracebacks last."""
    text: str = redacted(event)
    return text


def _arranged(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For people: the subject comes first; zero and absent values of wide events are left out."""
    first = {name: event[name] for name in _FIRST if name in event}
    arranged = first | {name: value for name, value in event.items() if name not in first}
    if event.get("event") not in _WIDE:
        return arranged
    return {name: value for name, value in arranged.items() if value or value is False}


def _console(*, colours: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colours,
        timestamp_key="at",
        pad_event_to=12,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
    )


def set_up(form: Format, level: Level, *, stream: TextIO | None = None, colours: bool = True) -> None:
    """Send all logs to standard error (or ``stream``) in this form, from this level up.

    ``colours``: permit colours if the stream is a terminal and the form is text.
    """
    target = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _traced,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if form == "json" else "%H:%M:%SZ", utc=True, key="at"),
    ]
    ending: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, _redact, structlog.processors.JSONRenderer(ensure_ascii=False)]
        if form == "json"
        else [_redact, _arranged, _console(colours=colours and target.isatty()), _redact_text]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
    )
    lines = logging.StreamHandler(target)
    lines.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(level.upper())
    for name in _LOUD:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
