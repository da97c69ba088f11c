"""A subscription of a scene: the events it selects, and its table in the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

SECRET = "whsec_Y2hhb3MgaXMgYSBsYWRkZXIsIG5vdCBhIHBpdA=="  # noqa: S105 -- of no use anywhere
PATIENT = '["50ms", "100ms", ' + '"150ms", ' * 30 + '"2h"]'


@dataclass(frozen=True, slots=True)
class Wish:
    """A subscription.

    Attributes:
        sink: its id, and the path of its sink.
        wants: whether it selects an event.
        lines: further lines of its table.
        signed: whether it has a signing secret.
        sent: what is sent of an event that it selects.
    """

    sink: str
    wants: Callable[[Mapping[str, Any]], bool] = lambda _: True
    lines: str = ""
    signed: bool = True
    sent: Callable[[bytes], bytes] = bytes

    def table(self, secret: Path, sinks: str, timeout: str) -> str:
        """Its table in a configuration file.

        Args:
            secret: the file of :data:`SECRET`.
            sinks: the URL below which all sinks are.
            timeout: how long a sink may take to answer.
        """
        lines = [
            "[[subscriptions]]",
            f'id = "{self.sink}"',
            f'sink = "{sinks}/{self.sink}"',
            "allow_private = true",
            *([] if "timeout" in self.lines else [f'timeout = "{timeout}"']),
            *([] if "start" in self.lines else ['start = "earliest"']),
            *([f'secret_files = ["{secret}"]'] if self.signed else []),
            *([] if "retry" in self.lines else [f"retry = {{ schedule = {PATIENT} }}"]),
            self.lines,
        ]
        return "\n".join(lines) + "\n"
