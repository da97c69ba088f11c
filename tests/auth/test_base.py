"""Laws of :mod:`poller.auth.base`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from poller.auth.base import (
    Credential,
    EnvironmentToken,
    FileToken,
    Issued,
    IssuedToken,
    Issuer,
    NoCredential,
    SecretFile,
    SingleFlight,
)
from poller.auth.command import TokenCommand
from poller.clock import Clock
from poller.errors import ConfigurationError, CredentialUnusable, SourceError, SourceUnavailable
from poller.http.transport import Transport, tls_of
from poller.redis.errors import check_files
from tests.harness.clock import StubClock
from tests.harness.waiting import limited, turns
from tests.source.clients import keep


async def test_a_file_gives_its_content_without_white_space(tmp_path: Path) -> None:
    """Surrounding white space, such as an editor's final line break, is not part of the token."""
    path = tmp_path / "token"
    keep(path, "  abc.def \r\n")
    assert await FileToken(path).token() == "abc.def"


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A file that is overwritten or replaced, even with the same length, gives the new token next."""
    path, other = tmp_path / "token", tmp_path / "other"
    keep(path, "one")
    credential = FileToken(path)
    assert await credential.token() == "one"
    keep(path, "three")
    assert await credential.token() == "three"
    keep(other, "seven")
    other.replace(path)
    assert await credential.token() == "seven"


async def test_a_file_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """While the file is missing there is no token, not even the old one; when it is back it is used."""
    path = tmp_path / "token"
    keep(path, "one")
    credential = FileToken(path)
    assert await credential.token() == "one"
    path.unlink()
    with pytest.raises(CredentialUnusable, match="No such file"):
        await credential.token()
    keep(path, "two")
    assert await credential.token() == "two"


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"s3cret two", b"s3cret\ntwo", "s3crét".encode(), b"s3cret\x00", b"\xffs3cret"]
)
async def test_what_is_no_token_is_refused_without_being_shown(content: bytes, tmp_path: Path) -> None:
    """Empty, multi-word or non-ASCII content is refused by an error that names the file and hides the content."""
    path = tmp_path / "token"
    keep(path, content)
    with pytest.raises(CredentialUnusable) as refused:
        await FileToken(path).token()
    assert str(path) in str(refused.value)
    assert "s3cr" not in str(refused.value)


async def test_a_variable_gives_its_value_of_now() -> None:
    """The variable is read for each request; a missing or empty one is named."""
    environ = {"TOKEN": " abc "}
    credential = EnvironmentToken("TOKEN", environ)
    assert await credential.token() == "abc"
    environ |= {"TOKEN": "def"}
    assert await credential.token() == "def"
    del environ["TOKEN"]
    with pytest.raises(CredentialUnusable, match="environment variable TOKEN holds no token"):
        await credential.token()


async def test_no_credential_is_no_token() -> None:
    """Without a credential no token is sent."""
    assert await NoCredential().token() is None
    assert not await NoCredential().renew("any")


async def test_a_refused_token_is_renewed_where_there_is_another(tmp_path: Path) -> None:
    """A refused variable or file is read again, and renewed only if its content has changed."""
    environ = {"TOKEN": "one"}
    path = keep(tmp_path / "token", "one")
    for credential in (EnvironmentToken("TOKEN", environ), FileToken(path)):
        assert await credential.token() == "one"
        assert not await credential.renew("one")
    environ |= {"TOKEN": "two"}
    path.write_text("two")
    for credential in (EnvironmentToken("TOKEN", environ), FileToken(path)):
        assert await credential.renew("one")
        assert await credential.token() == "two"


# Laws of :mod:`poller.auth.base`, with a fake clock.


class NumberedTokens(Issuer):
    """Issues t1, t2, …, each to be renewed after 80 s and valid for 100; fails if ``fails`` is set."""

    origin = "a test"

    def __init__(self) -> None:
        self.now = 1000.0
        self.made = 0
        self.fails: SourceError | None = None
        self.repeats = False
        self.takes = 0.0
        self.credential = IssuedToken(self, clock=StubClock(monotonic=lambda: self.now))

    async def issue(self) -> Issued:
        self.made += 1
        number = 1 if self.repeats else self.made
        await turns()
        self.now += self.takes
        if self.fails:
            raise self.fails
        return Issued(f"t{number}", timedelta(seconds=80), timedelta(seconds=100))


async def test_a_token_serves_until_it_is_to_be_renewed() -> None:
    """A token is used until its renewal time, counted from its request and not from its arrival."""
    issuer = NumberedTokens()
    issuer.takes = 10
    assert await issuer.credential.token() == "t1"
    issuer.now = 1079.9
    assert await issuer.credential.token() == "t1"
    issuer.now = 1080
    assert await issuer.credential.token() == "t2"


async def test_requests_at_the_same_time_share_one_token() -> None:
    """Concurrent requests share the first token and each renewal."""
    issuer = NumberedTokens()
    for now, token in ((1000, "t1"), (1090, "t2")):
        issuer.now = now
        assert set(await asyncio.gather(*(issuer.credential.token() for _ in range(20)))) == {token}
    assert issuer.made == 2


async def test_an_outage_of_the_issuer_is_none_while_the_old_token_is_good() -> None:
    """While the old token is valid a failing issuer is retried every few seconds; after that requests fail."""
    issuer = NumberedTokens()
    assert await issuer.credential.token() == "t1"
    issuer.fails = SourceUnavailable("away")
    for now, made in ((1080, 2), (1084, 2), (1085, 3), (1095, 4)):
        issuer.now = now
        assert await issuer.credential.token() == "t1"
        assert issuer.made == made
    issuer.now = 1100
    with pytest.raises(SourceUnavailable, match="away"):
        await issuer.credential.token()
    issuer.fails = None
    assert await issuer.credential.token() == "t6"


class HangingTokens(NumberedTokens):
    """Answers while ``answers`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.credential = IssuedToken(self, clock=StubClock(monotonic=lambda: self.now), patience=0.05)
        self.answers = asyncio.Event()
        self.answers.set()

    async def answer(self) -> None:
        """Let the issuer answer, and wait until every waiting task has continued."""
        self.answers.set()
        async with limited():
            while asyncio.all_tasks() - {asyncio.current_task()}:
                await turns()
        await turns(2)

    async def issue(self) -> Issued:
        await self.answers.wait()
        return await super().issue()


async def test_requests_do_not_wait_for_an_issuer_that_hangs_while_the_old_token_is_good() -> None:
    """Requests wait at most a second, once, for a hanging issuer; the new token is used as soon as it arrives."""
    issuer = HangingTokens()
    assert await issuer.credential.token() == "t1"
    issuer.answers.clear()
    issuer.now = 1080
    async with asyncio.timeout(20):
        assert set(await asyncio.gather(*(issuer.credential.token() for _ in range(20)))) == {"t1"}
    for issuer.now in (1081, 1086, 1099):
        with pytest.raises(StopIteration, match="t1"):  # it does not wait for anything
            issuer.credential.token().__await__().send(None)
    await issuer.answer()
    assert await issuer.credential.token() == "t2"
    assert issuer.made == 2


async def test_a_request_whose_token_has_expired_joins_the_renewal_that_is_under_way() -> None:
    """A request with an expired token joins the running renewal instead of starting another."""
    issuer = HangingTokens()
    assert await issuer.credential.token() == "t1"
    issuer.answers.clear()
    issuer.now = 1080
    assert await issuer.credential.token() == "t1"
    issuer.now = 1100
    waiting = asyncio.create_task(issuer.credential.token())
    await turns()
    assert not waiting.done()
    issuer.answers.set()
    assert await waiting == "t2"
    assert issuer.made == 2


async def test_a_renewal_that_fails_in_the_background_is_repeated_a_little_later() -> None:
    """A renewal that fails in the background is repeated five seconds after its end."""
    issuer = HangingTokens()
    assert await issuer.credential.token() == "t1"
    issuer.answers.clear()
    issuer.now = 1080
    assert await issuer.credential.token() == "t1"
    issuer.fails, issuer.now = SourceUnavailable("away"), 1085
    await issuer.answer()
    issuer.fails, issuer.now = None, 1089
    assert await issuer.credential.token() == "t1"
    issuer.now = 1090
    assert await issuer.credential.token() == "t3"


async def test_a_credential_that_is_closed_ends_its_renewal() -> None:
    """Closing a credential ends its renewal, and a waiting request gets the old token."""
    issuer = HangingTokens()
    assert await issuer.credential.token() == "t1"
    issuer.answers.clear()
    issuer.now = 1080
    waiting = asyncio.create_task(issuer.credential.token())
    await turns()
    await issuer.credential.close()
    assert await waiting == "t1"


async def test_a_refusal_of_the_issuer_is_told_at_once() -> None:
    """A refusal of the token endpoint is reported immediately, because an operator has to act."""
    issuer = NumberedTokens()
    assert await issuer.credential.token() == "t1"
    issuer.fails, issuer.now = CredentialUnusable("no"), 1090
    with pytest.raises(CredentialUnusable):
        await issuer.credential.token()


async def test_a_refused_token_is_renewed_once_however_many_say_so() -> None:
    """Any number of refusals of one token, concurrent or successive, lead to one renewal."""
    issuer = NumberedTokens()
    assert await issuer.credential.token() == "t1"
    assert all(await asyncio.gather(*(issuer.credential.renew("t1") for _ in range(20))))
    assert await issuer.credential.renew("t1")
    assert issuer.made == 2
    assert await issuer.credential.token() == "t2"
    assert await issuer.credential.renew("t2")
    assert await issuer.credential.token() == "t3"


async def test_the_same_token_again_is_no_other_token() -> None:
    """An issuer that returns the refused token again has not renewed it."""
    issuer = NumberedTokens()
    issuer.repeats = True
    assert await issuer.credential.token() == "t1"
    assert not await issuer.credential.renew("t1")
    assert issuer.made == 2


async def test_a_refused_token_is_never_used_again() -> None:
    """A refused token is not used again, even if the issuer is unavailable and the token has not expired."""
    issuer = NumberedTokens()
    assert await issuer.credential.token() == "t1"
    issuer.fails = SourceUnavailable("away")
    with pytest.raises(SourceUnavailable):
        await issuer.credential.renew("t1")
    with pytest.raises(SourceUnavailable):
        await issuer.credential.token()


# Laws of :mod:`poller.auth.base`.


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o666, 0o777, 0o444])
def test_a_file_that_others_may_use_is_refused(mode: int, tmp_path: Path) -> None:
    """A file that others may read or write is refused, with the remedy and without the secret."""
    path = keep(tmp_path / "token", "s3cret")
    path.chmod(mode)
    with pytest.raises(CredentialUnusable) as refused:
        SecretFile(path, "token").text()
    assert f"chmod 600 {path}" in str(refused.value)
    assert f"mode {mode:04o}" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440, 0o660])
def test_owner_and_group_may_read(mode: int, tmp_path: Path) -> None:
    """A file that its group may read is accepted, as containers mount secrets that way."""
    path = keep(tmp_path / "token", "s3cret")
    path.chmod(mode)
    assert SecretFile(path, "token").text() == "s3cret"


def test_a_file_that_is_opened_to_others_is_refused_from_then_on(tmp_path: Path) -> None:
    """A known file that becomes readable for others is refused until its mode is corrected."""
    path = keep(tmp_path / "token", "one")
    file = SecretFile(path, "token")
    assert file.text() == "one"
    path.chmod(0o644)
    with pytest.raises(CredentialUnusable, match="chmod 600"):
        file.text()
    path.chmod(0o600)
    assert file.text() == "one"


def test_links_are_followed_as_kubernetes_moves_them(tmp_path: Path) -> None:
    """The content, mode and identity of the link's final target count, so a moved link gives the new secret."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        keep(tmp_path / name / "token", name)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    file = SecretFile(tmp_path / "token", "token")
    assert file.text() == "one"
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert file.text() == "two"
    (tmp_path / "two" / "token").chmod(0o644)
    with pytest.raises(CredentialUnusable, match="chmod 600"):
        file.text()


def test_a_change_that_cannot_be_seen_is_found_by_reading_anew(tmp_path: Path) -> None:
    """``reread`` finds a change that file times and length do not show."""
    path = keep(tmp_path / "token", "one")
    file = SecretFile(path, "token")
    assert file.text() == "one"
    file._text = "old"  # the content before an undetectable change
    assert file.text() == "old"
    assert file.text(reread=True) == "one"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A directory or a pipe, which would block its reader, is refused without being read."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, pipe):
        with pytest.raises(CredentialUnusable, match="not a regular file"):
            SecretFile(path, "token").text()


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    """A file that is too large for a secret is refused without being read."""
    path = keep(tmp_path / "token", "y" * 70_000)
    with pytest.raises(CredentialUnusable, match="larger than 65536 bytes"):
        SecretFile(path, "token").text()


def test_an_empty_file_is_named_with_what_it_should_hold(tmp_path: Path) -> None:
    """An empty file is an error that says what it should hold."""
    path = keep(tmp_path / "secret", "\n")
    with pytest.raises(CredentialUnusable, match=r"the file .*secret holds no client secret"):
        SecretFile(path, "client secret").text()


class Swapped(type(Path())):  # type: ignore[misc] # the class of this system's paths
    """A path whose link moves to another target as soon as the first one is open."""

    def open(self, *args: Any, **how: Any) -> Any:
        opened = super().open(*args, **how)
        beside = self.with_name("beside")
        beside.symlink_to("new")
        beside.replace(self)
        return opened


def test_a_rotation_in_the_middle_of_reading_is_not_missed(tmp_path: Path) -> None:
    """A file that is replaced while it is read is read again the next time."""
    keep(tmp_path / "old", "old")
    keep(tmp_path / "new", "new")
    (tmp_path / "token").symlink_to("old")
    file = SecretFile(Swapped(tmp_path / "token"), "token")
    assert [file.text(), file.text()] == ["old", "new"]


# Laws of :mod:`poller.auth.base`.


class Work:
    """Counts its runs, and ends each when ``go`` is set."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.at_once = self.most_at_once = 0
        self.started, self.go = asyncio.Event(), asyncio.Event()
        self.fails = False
        self.flight = SingleFlight(self.run)

    async def run(self) -> int:
        self.begun += 1
        number = self.begun
        self.started.set()
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await turns(3)  # as closing a connection does
            raise
        finally:
            self.at_once -= 1
        if self.fails:
            raise ValueError(f"failure {number}")
        return number


async def begun(work: Work, callers: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(work.flight()) for _ in range(callers)]
    await work.started.wait()  # the work is a task of its own that starts after all callers
    return tasks


async def test_callers_at_the_same_time_share_one_run() -> None:
    """Concurrent callers share one run and its result; a later caller starts another."""
    work = Work()
    callers = await begun(work, 5)
    work.go.set()
    assert await asyncio.gather(*callers) == [1] * 5
    assert await work.flight() == 2


async def test_a_failure_is_everybodys() -> None:
    """All callers of a run get its failure, and the next run is unaffected."""
    work = Work()
    work.fails = True
    callers = await begun(work, 3)
    work.go.set()
    assert [str(error) for error in await asyncio.gather(*callers, return_exceptions=True)] == ["failure 1"] * 3
    work.fails = False
    assert await work.flight() == 2


async def test_a_caller_that_is_cancelled_leaves_the_others_undisturbed() -> None:
    """Cancelling one caller, even the first, does not affect the others."""
    work = Work()
    callers = await begun(work, 3)
    callers[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    work.go.set()
    assert await asyncio.gather(*callers[1:]) == [1, 1]
    assert work.cancelled == 0


async def test_work_that_nobody_waits_for_is_ended() -> None:
    """Work ends when its last caller is cancelled, and the next caller starts it again."""
    work = Work()
    callers = await begun(work, 2)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert work.cancelled == 1
    assert len(asyncio.all_tasks()) == 1
    work.go.set()
    assert await work.flight() == 2


@pytest.mark.parametrize("later", range(1, 6))
async def test_who_leaves_a_run_that_is_over_disturbs_nobody_in_the_next(later: int) -> None:
    """If a caller is cancelled around the end of a run, the next run is still the only one."""
    work = Work()
    (leaving,) = await begun(work, 1)

    async def comes() -> int:
        await turns(later)
        leaving.cancel()
        work.go.clear()
        return await work.flight()

    next_ones = [asyncio.create_task(comes())]
    work.go.set()
    await turns(later + 5)
    next_ones.append(asyncio.create_task(work.flight()))
    await turns(5)
    work.go.set()
    assert set(await asyncio.gather(*next_ones)) <= {1, 2}
    await asyncio.wait({leaving})
    assert work.most_at_once == 1


@pytest.mark.parametrize("later", range(1, 6))
async def test_who_asks_while_the_work_is_being_ended_has_it_done_anew(later: int) -> None:
    """A caller that comes while abandoned work is being cancelled gets a run of its own."""
    work = Work()
    (leaving,) = await begun(work, 1)
    leaving.cancel()
    await turns(later)
    work.go.set()
    assert await work.flight() == 2


PASTED = [
    "whsec_c2VjcmV0c2VjcmV0",
    "whsk_c2VjcmV0c2VjcmV0",
    "eyJhbGciOiJIUzI1NiJ9.e30.x",
    "ghp_0123456789abcdef",
    "a1" * 16,
    "q7Zk2pVx9LmN4rTbC8wYd/J6hGf3sQ",
    "1lZ-x_2kqk-9PmVt0wLr5bNc",
    "x" * 300 + "1",
]


@pytest.mark.parametrize("secret", PASTED)
async def test_a_secret_in_place_of_its_file_variable_or_command_is_not_shown(secret: str, tmp_path: Path) -> None:
    """A missing file, variable or command is named, unless the text looks like a secret."""
    credentials: list[Credential] = [FileToken(tmp_path / secret), IssuedToken(TokenCommand([secret]), clock=Clock())]
    if secret.isidentifier():
        credentials.append(EnvironmentToken(secret, {}))
    for credential in credentials:
        with pytest.raises(CredentialUnusable) as refused:
            await credential.token()
        assert not [part for part in secret.split("/") if part in str(refused.value)]


@pytest.mark.parametrize("secret", PASTED)
async def test_a_secret_in_place_of_a_certificate_file_is_not_shown(secret: str, tmp_path: Path) -> None:
    """A missing certificate file is not named if its name looks like a secret; an existing file is named."""
    pasted, there = tmp_path / secret, keep(tmp_path / "there-0123456789abcdef012345.pem", "no certificate")
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: tls_of(Transport(ca_file=pasted), "source"), "certificates of a source"),
        (lambda: tls_of(Transport(client_cert_file=there, client_key_file=pasted), "sink"), "certificates of a sink"),
        (lambda: check_files({"ssl_ca_certs": str(pasted)}, shown="rediss://x"), "ssl_ca_certs"),
    ]
    for attempt, named in attempts:
        with pytest.raises(ConfigurationError, match=named) as refused:
            attempt()
        assert not [part for part in secret.split("/") if part in str(refused.value)]
    with pytest.raises(ConfigurationError, match=there.name):
        tls_of(Transport(ca_file=there), "source")


@pytest.mark.parametrize("name", ["acme", "acme-token.txt", "rostering_signing_secret"])
async def test_a_file_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    """A missing file is named, so that an operator can create it."""
    with pytest.raises(CredentialUnusable, match=name):
        await FileToken(tmp_path / name).token()
    random = keep(tmp_path / PASTED[4], "")
    with pytest.raises(CredentialUnusable, match=PASTED[4]):
        await FileToken(random).token()
    with pytest.raises(CredentialUnusable, match="ACME_TOKEN_OF_2024_FOR_ROSTERING"):
        await EnvironmentToken("ACME_TOKEN_OF_2024_FOR_ROSTERING", {}).token()
