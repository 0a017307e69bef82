"""The base of all domain types: frozen, closed to unknown fields, finite numbers only."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decibans = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]

Scalar = bool | int | float | str | None
Value = Scalar | list[Any] | dict[str, Any]


class Frozen(BaseModel):
    """Immutable record; a field that is not declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", protected_namespaces=())

    def plain(self) -> dict[str, Any]:
        """JSON-ready dict; ``type(self).model_validate(x.plain()) == x``."""
        return self.model_dump(mode="json")
