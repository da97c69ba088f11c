"""The filters of a subscription: the dialects exact, prefix, suffix, all, any and not of CloudEvents Subscriptions.

Law: a filter is exactly one dialect. What it lets through is decided in delivery; here only its shape is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from poller.config.scalars import Table


def _attributes(compared: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in compared.items():
        if not (name.isascii() and name.isalnum() and name == name.lower()):
            raise ValueError("expected names of CloudEvents attributes: lower-case letters and digits")
        if not value:
            raise ValueError(f"expected text for {name} that is not empty")
    return compared


Compared = Annotated[
    Mapping[str, str],
    Field(min_length=1, json_schema_extra={"propertyNames": {"pattern": "^[a-z0-9]+$"}}),
    AfterValidator(_attributes),
]


def _dialects(schema: dict[str, Any]) -> None:
    schema.update(minProperties=1, maxProperties=1)


class FilterSettings(Table):
    """Exactly one dialect."""

    model_config = ConfigDict(json_schema_extra=_dialects)

    exact: Compared | None = Field(default=None, description="Attributes that must have exactly these values.")
    prefix: Compared | None = Field(default=None, description="Attributes whose values must begin with these texts.")
    suffix: Compared | None = Field(default=None, description="Attributes whose values must end with these texts.")
    all: Annotated[tuple[FilterSettings, ...], Field(min_length=1)] | None = Field(
        default=None, description="Filters that must all hold."
    )
    any: Annotated[tuple[FilterSettings, ...], Field(min_length=1)] | None = Field(
        default=None, description="Filters of which one at least must hold."
    )
    not_: FilterSettings | None = Field(default=None, alias="not", description="A filter that must not hold.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("expected exactly one of exact, prefix, suffix, all, any, not; join several with all")
        return self
