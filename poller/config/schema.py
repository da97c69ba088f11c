"""The JSON Schema of the configuration file, for editors and for ``poller schema config``.

Law: what the schema refuses, loading refuses. Loading refuses more: what holds between keys, a schema cannot say.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from poller.config.daemon import Address
from poller.config.settings import Settings
from poller.config.units import Share, format_duration, format_share

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _AsWritten(GenerateJsonSchema):
    """Defaults as one would write them in the file; a table's are those of its keys."""

    def encode_default(self, dft: Any) -> Any:
        match dft:
            case timedelta():
                return format_duration(dft)
            case Share():
                return format_share(dft)
            case Address():
                return str(dft)
            case BaseModel():
                return None
            case tuple():
                return [self.encode_default(one) for one in dft]
            case _:
                return super().encode_default(dft)


def config_schema() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of the file as parsed from TOML, with a description for every key."""
    schema: dict[str, Any] = _as_toml(Settings.model_json_schema(mode="validation", schema_generator=_AsWritten))
    return {"$schema": DIALECT} | schema | {"title": "poller.toml", "description": "The configuration of poller."}


def _as_toml(schema: Any) -> Any:
    """Without null, which TOML does not have: neither as a default nor as an alternative."""
    if isinstance(schema, list):
        return [_as_toml(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _as_toml(value) for key, value in schema.items() if key != "title" and (key, value) != ("default", None)
    }
    alternatives = kept.get("anyOf", [])
    if {"type": "null"} in alternatives:
        kept["anyOf"] = [one for one in alternatives if one != {"type": "null"}]
    if len(kept.get("anyOf", [])) == 1:
        (only,) = kept.pop("anyOf")
        return only | kept
    return kept
