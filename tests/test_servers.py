"""Laws of :mod:`tests.servers`."""

from __future__ import annotations

import pytest

from tests.servers import free_port


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No port is given twice, neither by one worker of a run nor by two of them."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    given = []
    for worker in ("gw0", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        given.append([free_port() for _ in range(200)])
    assert len({*given[0], *given[1]}) == 400
    assert {port % 3 for port in given[0]} != {port % 3 for port in given[1]}
