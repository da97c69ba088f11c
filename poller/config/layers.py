"""The two layers of the configuration as pydantic-settings knows them: what the file says, the environment over it."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource


class Layer(PydanticBaseSettingsSource):
    """Values that are already at hand, in the shape of the file."""

    def __init__(self, values: dict[str, Any], settings: type[BaseSettings]) -> None:
        super().__init__(settings)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002  # as inherited
        """The value of one key; None where the layer is silent."""
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """All values of the layer."""
        return self._values


class FileLayer(Layer):
    """What the TOML file says."""


class EnvironmentLayer(Layer):
    """What the environment says, as :func:`~poller.config.overlay.overlay` understood it."""
