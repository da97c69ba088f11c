"""Whether traces are asked for, by the environment variables that every program with OpenTelemetry knows.

=================================================================  ======================================
variable                                                           traces are
=================================================================  ======================================
``OTEL_SDK_DISABLED=true``                                         off, whatever else is said
``OTEL_TRACES_EXPORTER=otlp``, ``console``, or both with a comma   sent there
``OTEL_TRACES_EXPORTER=none``                                      off
``OTEL_EXPORTER_OTLP_ENDPOINT``, ``…_TRACES_ENDPOINT``, any value  sent by OTLP, unless the others say no
=================================================================  ======================================

What else there is (headers, service name, sampler, limits) OpenTelemetry reads by itself. A variable that is empty is
as good as not set.

The law: where traces are off, nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from poller.errors import ConfigurationError
from poller.telemetry import unblock_opentelemetry
from poller.telemetry.tracing import using

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_KNOWN: Final = ("otlp", "console", "none")


def asked_for(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where traces are to be sent: ``otlp``, ``console``; nowhere: they are off.

    Raises:
        ConfigurationError: to something that is not known here.
    """
    if environ.get(_DISABLED, "").strip().lower() == "true":
        return ()
    said = environ.get(EXPORTER, "").strip().lower()
    if not said:
        said = "otlp" if any(environ.get(name, "").strip() for name in ENDPOINTS) else "none"
    asked = tuple(dict.fromkeys(one.strip() for one in said.split(",")))
    for one in asked:
        if one not in _KNOWN or (one == "none" and len(asked) > 1):
            raise ConfigurationError(f'{EXPORTER} is "{said}"; expected otlp, console, otlp,console or none')
    if "otlp" in asked:
        _check_protocol(environ)
    return tuple(one for one in asked if one != "none")


@contextmanager
def traced_if_asked(environ: Mapping[str, str]) -> Iterator[None]:
    """Trace while the block runs, where the environment asks for it; what is left is sent at its end, within moments.

    Raises:
        ConfigurationError: it asks for what cannot be had.
    """
    asked = asked_for(environ)
    if not asked:
        yield
        return
    unblock_opentelemetry()
    try:
        from poller.telemetry.otel import collecting  # noqa: PLC0415 -- an extra, and not imported unless asked for
    except ImportError as missing:
        raise ConfigurationError(
            f"the environment asks for traces ({_why(environ)}), and OpenTelemetry is not installed ({missing}): "
            "pip install 'poller[otel]', or set OTEL_SDK_DISABLED=true"
        ) from None
    with collecting(asked, environ) as tracer, using(tracer):
        yield


def _why(environ: Mapping[str, str]) -> str:
    return next(name for name in (EXPORTER, *ENDPOINTS) if environ.get(name, "").strip())


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        said = environ.get(name, "").strip().lower()
        if said and said != _PROTOCOL:
            raise ConfigurationError(f'{name} is "{said}"; expected {_PROTOCOL}: traces are sent by no other')
        if said:
            return
