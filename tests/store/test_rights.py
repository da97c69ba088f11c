"""Laws of :mod:`poller.store.rights`: what the user may not do is named; on a server as ``deploy/redis`` has it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from poller.store.connection import commands
from poller.store.rights import Refusal, asked, refused
from tests.acl import DEPLOYED, Guarded, running_with_acl, set_user

if TYPE_CHECKING:
    from collections.abc import Iterator

WITHOUT_KEYS: Final = {
    *("ping", "role", "asking", "cluster|slots", "time", "info", "config|get", "client|setname", "select"),
    *("eval", "evalsha", "script|load", "scan"),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_with_acl("valkey", tmp_path_factory.mktemp("rights")) as server:
        yield server


async def found(guarded: Guarded, *rules: str, prefix: str = "poller") -> Refusal | None:
    """What is refused once these rules were added; they are taken back."""
    async with commands(guarded.admin) as admin, commands(guarded.url) as client:
        before = [rule for rule in _rules() if rules]
        await set_user(admin, *rules)
        try:
            return await refused(client, prefix, "acme/contractTypes")
        finally:
            await set_user(admin, *before)


async def test_the_user_that_is_delivered_may_do_all(guarded: Guarded) -> None:
    """Nothing is refused, and nothing is changed by asking."""
    assert await found(guarded) is None
    async with commands(guarded.admin) as admin:
        assert await admin.dbsize() == 0


async def test_what_is_missing_is_named_as_a_rule_has_it(guarded: Guarded) -> None:
    """Subcommands with their command; scripts by all that they need."""
    refusal = await found(guarded, "-xtrim", "-xgroup|create")
    assert refusal == Refusal(("xgroup|create", "xtrim"), keys=False)
    assert await found(guarded, "-eval") == Refusal(("eval", "evalsha", "script|load"), keys=False)
    assert await found(guarded) is None


async def test_keys_of_another_prefix_are_told_apart_from_commands(guarded: Guarded) -> None:
    """The rule to add is one for keys then."""
    assert await found(guarded, prefix="other") == Refusal((), keys=True)


def test_each_command_that_has_a_key_is_asked_for() -> None:
    """The table and the rules of ``deploy/redis/users.acl`` say the same."""
    allowed = {rule.removeprefix("+") for rule in _rules() if rule.startswith("+")}
    assert {name for name, _ in asked("poller", "acme/contractTypes")} == allowed - WITHOUT_KEYS


def _rules() -> list[str]:
    line = next(one for one in (DEPLOYED / "users.acl").read_text().splitlines() if one.startswith("user poller "))
    return [rule for rule in line.split() if re.match(r"\+", rule)]
