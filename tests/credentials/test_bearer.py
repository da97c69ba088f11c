"""Laws of :mod:`poller.credentials.bearer`."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.credentials.bearer import EnvironmentToken, FileToken, NoCredential
from poller.errors import CredentialUnusable
from tests.source.clients import keep


async def test_a_file_gives_its_content_without_white_space(tmp_path: Path) -> None:
    """Editors end files with a line break; that is no part of the token."""
    path = tmp_path / "token"
    keep(path, "  abc.def \r\n")
    assert await FileToken(path).token() == "abc.def"


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Written over or replaced by another file, of the same length too: the next token is the new one."""
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
    """While it is missing there is no token, not even the old one; afterwards there is."""
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
    """Empty, several words, other than printable ASCII: the message names the file and keeps the content to itself."""
    path = tmp_path / "token"
    keep(path, content)
    with pytest.raises(CredentialUnusable) as refused:
        await FileToken(path).token()
    assert str(path) in str(refused.value)
    assert "s3cr" not in str(refused.value)


async def test_a_variable_gives_its_value_of_now() -> None:
    """The environment is looked at for each request; a missing or empty variable is named."""
    environ = {"TOKEN": " abc "}
    credential = EnvironmentToken("TOKEN", environ)
    assert await credential.token() == "abc"
    environ |= {"TOKEN": "def"}
    assert await credential.token() == "def"
    del environ["TOKEN"]
    with pytest.raises(CredentialUnusable, match="environment variable TOKEN holds no token"):
        await credential.token()


async def test_no_credential_is_no_token() -> None:
    """An API that asks for none is sent none."""
    assert await NoCredential().token() is None
    assert not await NoCredential().renew("any")


async def test_a_refused_token_is_renewed_where_there_is_another(tmp_path: Path) -> None:
    """A variable and a file are looked at again; the same content is no other token."""
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
