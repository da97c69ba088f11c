"""Laws of :mod:`poller.sandbox.faults.answers`: each profile behaves on a socket as its description says."""

from __future__ import annotations

from datetime import timedelta
from email.utils import parsedate_to_datetime

from tests.sandbox.conftest import NOON, client_of
from tests.sandbox.faults.stage import ACHIEVEMENTS, LIST, Law, Stage, ids, shown

EVERYWHERE = (LIST, f"{LIST}/c1", ACHIEVEMENTS)


def without(name: str) -> Law:
    async def law(api: Stage) -> None:
        token = (await api.page())["deltaToken"]
        values = {"sinceDeltaToken": token, "limit": "3", "fields": "name", "fields[]": "name"}
        taken = {n: (await api.get(**{n: value})).status_code for n, value in values.items()}
        assert taken == {n: 400 if n.startswith(name) else 200 for n in values}

    return law


def at_most(status: int) -> Law:
    async def law(api: Stage) -> None:
        assert [(await api.get(limit=limit)).status_code for limit in (50, 51, 9999)] == [200, status, status]

    return law


async def unauthorized(api: Stage) -> None:
    token = (await api.page(limit=3))["pageToken"]
    refused = await api.get(pageToken=token)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
    assert (await api.client.post("/_sandbox/token?value=other")).status_code == 204
    assert (await api.get()).status_code == 401
    async with client_of(api.url, "other") as client:
        assert ids((await client.get(LIST, params={"pageToken": token})).json()) == ["c3", "c4", "c5"]


def always(status: int) -> Law:
    async def law(api: Stage) -> None:
        for path in EVERYWHERE:
            said = await api.get(path)
            assert (said.status_code, "retry-after" in said.headers) == (status, False)

    return law


def busy(status: int, after: str) -> Law:
    async def law(api: Stage) -> None:
        for path in EVERYWHERE:
            said = await api.get(path)
            assert (said.status_code, said.headers["retry-after"]) == (status, after)

    return law


def busy_until(status: int) -> Law:
    async def law(api: Stage) -> None:
        said = await api.get()
        until = parsedate_to_datetime(said.headers["retry-after"])
        assert (said.status_code, until - NOON) == (status, timedelta(seconds=2))

    return law


def spelled(style: str) -> Law:
    ways = {"repeat": "fields=id&fields=name", "comma": "fields=id,name", "brackets": "fields[]=id&fields[]=name"}

    async def law(api: Stage) -> None:
        taken = {way: (await api.client.get(f"{LIST}?{query}")).status_code for way, query in ways.items()}
        assert taken == {way: 200 if way == style else 400 for way in ways}
        assert (await api.get()).status_code == 200

    return law


async def alone(api: Stage) -> None:
    token = (await api.page(limit=3))["pageToken"]
    assert ids(await api.page(pageToken=token)) == ["c3", "c4", "c5"]
    assert (await api.get(pageToken=token, limit=3)).status_code == 400


async def delta_ignored(api: Stage) -> None:
    first = await api.page()
    api.change(1)
    again = await api.page(sinceDeltaToken=first["deltaToken"])
    assert len(ids(again)) == 7
    assert again["deltaToken"] != first["deltaToken"]


async def echoing(api: Stage) -> None:
    for path in EVERYWHERE:
        said = await api.get(path)
        assert (said.status_code, "Bearer sandbox" in said.text) == (400, True)


async def redirected(api: Stage) -> None:
    said = await api.get()
    assert said.next_request is not None
    assert (said.status_code, said.next_request.url.path) == (302, LIST)


def bare(status: int) -> Law:
    async def law(api: Stage) -> None:
        for path in EVERYWHERE:
            said = await api.get(path)
            assert (said.status_code, said.content) == (status, b"")

    return law


async def tagged(api: Stage) -> None:
    for path in EVERYWHERE:
        tag = (await api.get(path)).headers["etag"]
        again = await api.client.get(path, headers={"if-none-match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    tag = (await api.get()).headers["etag"]
    api.change(1)
    assert (await api.client.get(LIST, headers={"if-none-match": tag})).status_code == 200


AFTER = {"seconds": "1", "nonsense": "soon", "zero": "0", "negative": "-5", "years": "1000000000"}

LAWS = {
    "no-delta": without("sinceDeltaToken"),
    "no-limit": without("limit"),
    "no-fields": without("fields"),
    **{f"limit-{status}": at_most(status) for status in (400, 413, 422)},
    **{f"fields-{style}": spelled(style) for style in ("repeat", "comma", "brackets")},
    "page-token-alone": alone,
    "delta-ignored": delta_ignored,
    "echoes-token": echoing,
    "redirect": redirected,
    **{f"status-{status}": bare(status) for status in (204, 304)},
    "401-mid-round": unauthorized,
    **{f"status-{status}": always(status) for status in (408, 425, 429, 500, 502, 503, 504)},
    **{f"{status}-{kind}": busy(status, after) for status in (429, 503) for kind, after in AFTER.items()},
    **{f"{status}-date": busy_until(status) for status in (429, 503)},
    "etag": tagged,
}


async def test_each_does_what_its_line_says() -> None:
    """Each refusal profile behaves as its description in the table says."""
    await shown(LAWS)
