"""Laws of :mod:`poller.credentials.secret_file`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from poller.credentials.secret_file import SecretFile
from poller.errors import CredentialUnusable
from tests.source.clients import keep


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o666, 0o777, 0o444])
def test_a_file_that_others_may_use_is_refused(mode: int, tmp_path: Path) -> None:
    """Whatever they may do with it; the message says what to do, and the secret is not in it."""
    path = keep(tmp_path / "token", "s3cret")
    path.chmod(mode)
    with pytest.raises(CredentialUnusable) as refused:
        SecretFile(path, "token").text()
    assert f"chmod 600 {path}" in str(refused.value)
    assert f"mode {mode:04o}" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440, 0o660])
def test_owner_and_group_may_read(mode: int, tmp_path: Path) -> None:
    """The group too, as it does where containers mount secrets."""
    path = keep(tmp_path / "token", "s3cret")
    path.chmod(mode)
    assert SecretFile(path, "token").text() == "s3cret"


def test_a_file_that_is_opened_to_others_is_refused_from_then_on(tmp_path: Path) -> None:
    """Although its content is known already; closed again, it is used again."""
    path = keep(tmp_path / "token", "one")
    file = SecretFile(path, "token")
    assert file.text() == "one"
    path.chmod(0o644)
    with pytest.raises(CredentialUnusable, match="chmod 600"):
        file.text()
    path.chmod(0o600)
    assert file.text() == "one"


def test_links_are_followed_as_kubernetes_moves_them(tmp_path: Path) -> None:
    """What counts is the file at the end: its content, its mode, and that it is another one since the link moved."""
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
    """A file written over within a tick of the file system's clock, to the same length."""
    path = keep(tmp_path / "token", "one")
    file = SecretFile(path, "token")
    assert file.text() == "one"
    file._text = "old"  # what would have been read just before
    assert file.text() == "old"
    assert file.text(anew=True) == "one"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A directory, and a pipe that would block whoever opens it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, pipe):
        with pytest.raises(CredentialUnusable, match="not a regular file"):
            SecretFile(path, "token").text()


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    """A wrong path may lead to a file of any size; it is not read."""
    path = keep(tmp_path / "token", "y" * 70_000)
    with pytest.raises(CredentialUnusable, match="larger than 65536 bytes"):
        SecretFile(path, "token").text()


def test_an_empty_file_is_named_with_what_it_should_hold(tmp_path: Path) -> None:
    """The word for it comes from whoever wants it."""
    path = keep(tmp_path / "secret", "\n")
    with pytest.raises(CredentialUnusable, match=r"the file .*secret holds no client secret"):
        SecretFile(path, "client secret").text()


class Swapped(type(Path())):  # type: ignore[misc] # the class of this system's paths
    """A link that leads elsewhere as soon as what it led to is open."""

    def open(self, *args: Any, **how: Any) -> Any:
        opened = super().open(*args, **how)
        beside = self.with_name("beside")
        beside.symlink_to("new")
        beside.replace(self)
        return opened


def test_a_rotation_in_the_middle_of_reading_is_not_missed(tmp_path: Path) -> None:
    """Law: what is noted is which file was read, so the one that has taken its place is read the next time."""
    keep(tmp_path / "old", "old")
    keep(tmp_path / "new", "new")
    (tmp_path / "token").symlink_to("old")
    file = SecretFile(Swapped(tmp_path / "token"), "token")
    assert [file.text(), file.text()] == ["old", "new"]
