"""Laws of :mod:`poller.sandbox.faults.base`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.api import SandboxRequest, SandboxResponse
from poller.sandbox.faults.base import asking, on_answers, on_asks, on_pages, parameter, sealed, stacked, unsealed
from poller.sandbox.history import History

VALUES = st.lists(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text())
KIND = st.sampled_from(["a", "bc"])


@given(KIND, VALUES, KIND)
def test_a_seal_is_read_back(kind: str, values: list[object], other: str) -> None:
    """A sealed value is read under its own kind and no other; the token is printable ASCII without blanks."""
    token = sealed(kind, *values)
    assert unsealed(other, token) == (values if other == kind else None)
    assert token.isascii()
    assert token.isprintable()
    assert " " not in token


@given(st.text(), st.none() | st.binary())
def test_what_is_not_sealed_is_not_read(text: str, raw: bytes | None) -> None:
    """Any other text is read as no seal and raises no error."""
    assert unsealed("a", text) is None
    assert unsealed("a", "~a." + (text if raw is None else raw.decode("latin-1"))) in (None, [])


def test_pages_are_edited_and_nothing_else() -> None:
    """An edit of pages does not apply to single records and refusals."""
    said = {
        "list": SandboxResponse(200, b'{"results":[]}'),
        "single": SandboxResponse(200, b"x"),
        "refused": SandboxResponse(500, b"x"),
    }
    asks = {"list": SandboxRequest("r"), "single": SandboxRequest("r", id="1"), "refused": SandboxRequest("r")}
    for kind, inner in said.items():
        respond = on_pages(lambda _history, _ask, _page: None)(lambda _h, _a, inner=inner: inner)  # type: ignore[arg-type,misc,return-value] # an edit that would show
        answered = respond(History(), asks[kind])
        assert (answered.body == b"null") is (kind == "list")


def test_the_last_layer_is_outermost() -> None:
    """The first layer is next to the API; the last one sees the request first and the answer last."""
    layers = [on_answers(lambda _ask, said, n=n: SandboxResponse(200, said.body + n)) for n in (b"1", b"2")]  # type: ignore[misc] # n is bound here
    stop = on_asks(lambda ask: SandboxResponse(200, b"stopped") if ask.resource == "stop" else ask)
    respond = stacked([*layers, stop], lambda _history, ask: SandboxResponse(200, ask.resource.encode()))
    assert respond(History(), SandboxRequest("r")).body == b"r12"
    assert respond(History(), SandboxRequest("stop")).body == b"stopped"


def test_parameters_are_replaced() -> None:
    """A replaced parameter occurs once, None removes it, and the others stay in order."""
    ask = SandboxRequest("r", query=(("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")))
    assert asking(ask, a="5", b=None).query == (("c", "4"), ("a", "5"))
    assert (parameter(ask, "a"), parameter(ask, "d")) == ("3", None)
