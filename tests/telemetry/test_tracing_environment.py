"""Laws of the variables that turn traces on, and of a process without the libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poller.clock import Clock
from poller.errors import ConfigurationError
from poller.telemetry import tracing
from poller.telemetry.tracing import configured_tracing, exporters_of

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:4318"
WITHOUT = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "POLLER_", "REDIS_"))}


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, ()),
        ({"OTEL_TRACES_EXPORTER": "", "OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ()),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, ()),
        ({"OTEL_TRACES_EXPORTER": "OTLP"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp")),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ()),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ("console",)),
        ({"OTEL_SDK_DISABLED": "True", "OTEL_TRACES_EXPORTER": "otlp"}, ()),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "zipkin"}, ()),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("console",)),
    ],
)
def test_what_is_asked_for(environ: dict[str, str], asked: tuple[str, ...]) -> None:
    """Law: only an exporter or an endpoint turns traces on; an empty variable counts as unset."""
    assert exporters_of(environ) == asked


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_TRACES_EXPORTER": "otlp,none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": URL,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json",
        },
    ],
)
def test_what_cannot_be_had(environ: dict[str, str]) -> None:
    """Law: an unsupported value is a configuration error that names the variable and the expected value."""
    with pytest.raises(ConfigurationError, match=r"OTEL_.* expected (otlp|http/protobuf)"):
        exporters_of(environ)


def test_not_asked_it_does_nothing() -> None:
    """Law: without these variables there is no tracer."""
    with configured_tracing({}, clock=Clock()):
        assert not tracing.on()


@pytest.mark.parametrize(
    "name", ["opentelemetry", pytest.param("opentelemetry.exporter.otlp.proto.http", marks=pytest.mark.thorough)]
)
def test_asked_for_and_not_installed(tmp_path: Path, name: str) -> None:
    """Law: if OpenTelemetry is missing, even in part, the exit code is 2 and one line says what to install."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}
    said = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(name=name), "once"],
        env=WITHOUT | {"PYTHONPATH": str(ROOT), "POLLER_BASE_URL": "http://127.0.0.1:9", "POLLER_TOKEN": "x"} | environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in said.stderr
    assert "pip install 'poller[otel]'" in said.stderr


_WITHOUT = "import sys; sys.modules['{name}'] = None; from poller.cli import main; main()"
