"""Laws of :mod:`poller.source.inflating`: what is unpacked is bounded before it exists."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import httpx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from poller.errors import SourceNonsense
from poller.source.inflating import Inflater
from tests.source.api import http, serving
from tests.source.clients import client_of, failure_of

MIB = 1024 * 1024


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=2000), st.integers(1, 500))
def test_pieces_make_the_body(body: bytes, step: int) -> None:
    """However a body is cut into pieces, what comes out is what was packed."""
    packed = gzip.compress(body)
    inflater = Inflater("gzip", most=len(body))
    out = b"".join(inflater.take(packed[start : start + step]) for start in range(0, len(packed), step))
    inflater.finish()
    assert out == body
    assert Inflater("", most=1).take(body) == body


def test_a_bomb_unpacks_to_the_bound_and_no_further() -> None:
    """A piece that stands for hundreds of megabytes gives one byte more than is of interest, and takes no memory."""
    bomb = gzip.compress(bytes(300 * MIB), compresslevel=9)
    tracemalloc.start()
    try:
        assert len(Inflater("gzip", most=MIB).take(bomb)) == MIB + 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_what_is_cut_off_or_broken_is_said_to_be() -> None:
    """A body that ends within its encoding is not a shorter body."""
    inflater = Inflater("gzip", most=100)
    inflater.take(gzip.compress(b"whole")[:-6])
    with pytest.raises(httpx.DecodingError, match="cut off"):
        inflater.finish()
    with pytest.raises(httpx.DecodingError, match="not gzip"):
        Inflater("gzip", most=100).take(b"something else")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("zstd", zstandard.compress(bytes(100 * MIB))),
        ("gzip, gzip", gzip.compress(gzip.compress(bytes(100 * MIB)))),
        ("deflate", zlib.compress(b"{}")),
    ],
    ids=["zstd", "twice", "deflate"],
)
async def test_only_what_was_asked_for_is_unpacked(encoding: str, body: bytes) -> None:
    """Other and stacked encodings are refused before a byte of them is unpacked."""
    async with serving(http(200, body, f"Content-Encoding: {encoding}")) as api, client_of(api.url) as client:
        failure = await failure_of(client)
    assert isinstance(failure, SourceNonsense)
    assert encoding in str(failure)
