"""Laws of :mod:`poller.service.web.admission`: who may change something, what others are told, and no token shown."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from poller.service.web.guesses import MOST
from tests.service.web.served import FEEDS, TOKEN, Served, configured, served

OTHER = TOKEN[::-1]
ORDER = f"/feeds/{FEEDS[0]}/resync"
CHANGING = (
    (ORDER, "POST"),
    (f"/feeds/{FEEDS[0]}/release", "POST"),
    (f"/feeds/{FEEDS[0]}/pause", "POST"),
    (f"/feeds/{FEEDS[0]}/resume", "POST"),
    ("/subscriptions", "POST"),
    ("/subscriptions/filed", "PUT"),
    ("/subscriptions/filed", "DELETE"),
    ("/subscriptions/filed/pause", "POST"),
    ("/subscriptions/filed/resume", "POST"),
)


async def test_without_a_token_nobody_changes_anything(tmp_path: Path, store_url: str) -> None:
    """403 with the way out, whatever is sent along."""
    async with served(configured(tmp_path, store_url, "filed", admin=False)) as given:
        for path, method in CHANGING:
            status, _, told = await given.ask(path, method)
            assert status == 403
            assert "http.admin_token_file" in told["detail"]


async def test_another_token_is_refused_and_not_repeated(given: Served) -> None:
    """401 for none, for another one and for another scheme; the right one is let in. The log names the address."""
    wrong = f"{TOKEN[:-1]}x"
    with capture_logs() as logs:
        for path, method in CHANGING:
            for headers in (
                {},
                {"authorization": f"Bearer {wrong}"},
                {"authorization": f"Basic {TOKEN}"},
                {"authorization": "Bearer"},
                {"authorization": f"Bearer {TOKEN}x"},
            ):
                status, answered, told = await given.ask(path, method, token=None, headers=headers)
                assert status == 401
                assert answered["www-authenticate"].startswith('Bearer realm="poller"')
                assert wrong not in str(told)
    assert {line["event"] for line in logs} == {"wrong admin token"}
    assert {line["client"] for line in logs} == {"127.0.0.1"}
    assert TOKEN[:-1] not in str(logs)
    assert (await given.ask(ORDER, "POST", headers={"authorization": f"bearer {TOKEN}"}))[0] == 409


async def test_the_token_may_be_replaced(given: Served) -> None:
    """The file's content counts as it is now; one that everybody may read lets nobody in, and only the log says it."""
    file = given.settings.http.admin_token_file
    assert file is not None
    file.write_text(OTHER, "utf-8")
    assert (await given.ask(ORDER, "POST"))[0] == 401
    assert (await given.ask(ORDER, "POST", token=OTHER))[0] == 409
    file.chmod(0o644)
    with capture_logs() as logs:
        status, _, told = await given.ask(ORDER, "POST", token=OTHER)
    assert status == 503
    assert str(file) not in str(told)
    assert "chmod 600" in logs[0]["error"]


async def test_guessing_ends(given: Served) -> None:
    """After so many wrong tokens further ones from there are heard of no more for a time; the right one is let in."""
    for _ in range(MOST):
        assert (await given.ask(ORDER, "POST", token=OTHER))[0] == 401
    with capture_logs() as logs:
        status, headers, _ = await given.ask(ORDER, "POST", token=OTHER)
    assert (status, logs) == (429, [])
    assert 0 < int(headers["retry-after"]) <= 60
    assert (await given.ask(ORDER, "POST"))[0] == 409
    assert (await given.ask("/feeds"))[0] == 200


async def test_reading_needs_none(given: Served) -> None:
    """What changes nothing is there for everybody."""
    for path in ("/", "/livez", "/feeds", f"/feeds/{FEEDS[0]}", "/subscriptions", "/subscriptions/filed", "/schemas/"):
        assert (await given.ask(path, token=None))[0] == 200
