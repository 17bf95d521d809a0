"""Defines the form of a parameters file as pydantic models: its keys, and the rules that an entry obeys by itself.

Whether names and values fit a model and a machine is checked in `quant.file.faults`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, PlainValidator, model_validator

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.weight_scaling import GROUP_STEP, LARGEST_GROUP, LEAST_GROUP, WeightScaling
from quant.repair.file import RepairSection
from toolchain.hw import shown

VERSION = 1
_TAILS = {"values", "below", "above"}


class Entry(BaseModel):
    """The entry of one tensor: its range (low, high), or scale and zero point, not both; and its type.

    A measured range has `values`, `below` and `above`, all or none, as in `quant.observe.Tails`, and may have the `step` of its
    values. `type`: of its codes; None: the machine's first, or what its neighbours have.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    zero_point: int | None = None
    values: Annotated[int, Field(gt=0)] | None = None
    below: Annotated[FiniteFloat, Field(ge=0)] | None = None
    above: Annotated[FiniteFloat, Field(ge=0)] | None = None
    step: Annotated[FiniteFloat, Field(gt=0)] | None = None
    type: Annotated[CodeType, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Entry:
        """Refuse an entry of neither form, of both, or with keys that do not belong to its form."""
        keys = {key for key, value in self.__dict__.items() if value is not None and key != "type"}
        tails = keys & _TAILS
        if keys - _TAILS - {"step"} not in ({"low", "high"}, {"scale", "zero_point"}):
            raise ValueError("needs low and high, or scale and zero_point, and not both")
        if tails and (tails != _TAILS or self.low is None):
            raise ValueError("values, below and above stand beside low and high, all three or none")
        if self.step is not None and self.low is None:
            raise ValueError("step stands beside low and high")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low!r} is above high {self.high!r}")
        return self


def _scales(value: Any) -> str | int | None:
    """Return the value where it is None, `tensor`, `channel` or a group's size; else raise ValueError."""
    sizes = range(LEAST_GROUP, LARGEST_GROUP + 1, GROUP_STEP)
    if value is None or value in ("tensor", "channel") or (type(value) is int and value in sizes):
        return value
    groups = f"a group's size, a multiple of {GROUP_STEP} from {LEAST_GROUP} to {LARGEST_GROUP}"
    raise ValueError(f"must be tensor, channel or {groups}; got {shown(value)}")


class Weights(BaseModel):
    """The entry of the weights of one layer, which has `scales`, `type` or both.

    `scales`: `tensor` (one for all), `channel` (one for each output channel), or a group's size. None: the machine's choice. A
    group is neighbours along the reduction that share one, a multiple of 16 from 16 to 256.
    `type`: type of their codes; None: the machine's choice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    scales: Annotated[Literal["tensor", "channel"] | int | None, PlainValidator(_scales)] = None
    type: Annotated[CodeType, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Weights:
        if self.scales is None and self.type is None:
            raise ValueError("needs scales, type or both")
        return self

    @property
    def scaling(self) -> WeightScaling | None:
        """The rule of which weights share a scale; None: the machine's choice."""
        if self.scales is None:
            return None
        group = 0 if isinstance(self.scales, str) else self.scales
        return WeightScaling(None if self.scales == "tensor" else 0, group)


def _require_integer(value: object) -> object:
    """Refuse a bool: YAML's `yes` is True, which equals 1."""
    if isinstance(value, bool):
        raise ValueError(f"must be 1, got {str(value).lower()}")
    return value


class File(BaseModel):
    """The whole file. Only `version` and `tensors` are required; model, hardware, observer, samples and data are for people.

    `tensors`: by the model's tensor. `weights`: by the layer's node. `repair`: what repair chose; None: nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    version: Annotated[Literal[1], BeforeValidator(_require_integer)]
    model: str = ""
    hardware: str = ""
    observer: str = "minmax"
    samples: Annotated[int, Field(ge=0)] = 0
    data: str = ""
    repair: RepairSection | None = None
    weights: dict[str, Weights] = Field(default_factory=dict)
    tensors: dict[str, Entry]
