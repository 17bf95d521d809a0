"""Define the base of every section of a description: frozen, of known keys only, strict."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1, le=1 << 40)]
NonNegative = Annotated[int, Field(ge=0, le=1 << 40)]
MOST_UNITS = 64  # queues of a machine
Units = Annotated[int, Field(ge=1, le=MOST_UNITS)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True, defer_build=True
    )
