"""How to come by a credential: the table ``auth`` of a source or of a subscription.

Law: exactly one kind, and never the secret itself, only where it is kept.

Reads no secret: that is done where it is used, each time it is needed, so that a rotated file counts at once.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from poller.config.scalars import FilePath, Flag, Table, Text, Variable
from poller.config.urls import Url

Kind = Literal["token_file", "token_env", "oauth2", "command", "none"]

KINDS = (
    'expected exactly one of { token_file = "…" }, { token_env = "NAME" }, { oauth2 = { … } }, { command = ["…"] } '
    "or { none = true }"
)


class OAuth2Settings(Table):
    """The client credentials grant (RFC 6749, 4.4)."""

    token_url: Url = Field(description="Where tokens are asked for: an http or https URL.")
    client_id: Text = Field(description="The client's id, as the authorization server knows it.")
    client_secret_file: FilePath = Field(
        description="The file that holds the client's secret; read for each new token."
    )
    scope: Text | None = Field(
        default=None, description="The scope asked for, words separated by spaces. Default: none."
    )
    audience: Text | None = Field(
        default=None, description="The audience asked for, where the server wants one. Default: none."
    )


class AuthSettings(Table):
    """Exactly one of the kinds; each says where the credential is kept, never the credential."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    token_file: FilePath | None = Field(
        default=None, description="The file that holds the bearer token; read again when it changes."
    )
    token_env: Variable | None = Field(
        default=None, description="The name of the environment variable that holds the bearer token."
    )
    oauth2: OAuth2Settings | None = Field(
        default=None,
        description="Tokens from an OAuth 2 server, by the client credentials grant; renewed before they expire.",
    )
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = Field(
        default=None, description="A program and its arguments; the first line that it prints is the bearer token."
    )
    none: Flag = Field(default=False, description="true: no credential is sent.")

    @field_validator("none")
    @classmethod
    def _only_true(cls, value: bool) -> bool:  # noqa: FBT001  # pydantic calls it with the value alone
        if not value:
            raise ValueError("expected true; leave none out where there is another kind")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self._given()) != 1:
            raise ValueError(KINDS)
        return self

    @property
    def kind(self) -> Kind:
        """Which one it is."""
        return self._given()[0]

    def _given(self) -> tuple[Kind, ...]:
        kinds: tuple[Kind, ...] = ("token_file", "token_env", "oauth2", "command")
        given = tuple(kind for kind in kinds if getattr(self, kind) is not None)
        return (*given, "none") if self.none else given


def no_credential() -> AuthSettings:
    """The default: a public or a local API needs none."""
    return AuthSettings(none=True)
