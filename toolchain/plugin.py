"""Define what the file of a plug-in declares (docs/plugins.md), and hold the plug-ins that are loaded.

A plug-in adds operators of ONNX from outside the package. Its file holds a `Plugin` by the name PLUGIN. Only
`toolchain.plugin_loading` opens such a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from toolchain.foundation.type_guards import is_list
from toolchain.ir.graph import TensorType
from toolchain.ir.step_builder import Operand, StepBuilder

__all__ = ["Array", "Example", "LoadedPlugin", "Operator", "Plugin", "Steps", "TensorType", "find_operator", "get_plugins"]

Array: TypeAlias = np.ndarray
OPSET = 21  # of ONNX, in which steps are written (docs/frontend.md)


class Operator:
    """The base of an operator of ONNX that a plug-in defines. A subclass is a frozen dataclass, whose fields are the
    attributes.

    `DOMAIN`: its domain in ONNX.
    `NAME`: its ONNX name; empty: the name of the class.
    `DOMAIN_VERSION`: the newest version of the domain in which the operator means this. Models that import a newer are refused.

    A field has a type of int, float, str, tuple[int, ...] or tuple[float, ...]; without a default the attribute is required.
    The parameters of `compute` are the inputs; those with a default may be absent. The methods `infer` and `steps` take the
    same ones. Every operator defines all three methods, also one with a rule in `Plugin.rules`.
    """

    DOMAIN: ClassVar[str]
    NAME: ClassVar[str] = ""
    DOMAIN_VERSION: ClassVar[int] = 1

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        """Return the type of each output. Raise ValueError where the inputs do not fit."""
        raise NotImplementedError

    def compute(self, *inputs: Array) -> Array | tuple[Array, ...]:
        """Return each output in float: the meaning of the operator, to which everything else is held."""
        raise NotImplementedError

    def steps(self, build: Steps, *inputs: str) -> str | tuple[str, ...]:
        """Return the tensor of each output, made by steps of standard ONNX operators."""
        raise NotImplementedError


@dataclass(frozen=True)
class Example:
    """A case on which `--check-plugin` checks an operator.

    `operator`: an instance with the attributes to check.
    `inputs`: an array is a constant, a shape is a float32 input of random values, None is an absent input.
    `least_db`: SQNR that each output must reach on a machine that runs it, in dB.
    `low`, `high`: limits of the random values.
    """

    operator: Operator
    inputs: tuple[Array | tuple[int, ...] | None, ...]
    least_db: float = 25.0
    low: float = -2.0
    high: float = 2.5


@dataclass(frozen=True)
class Plugin:
    """A plug-in: some operators under one name.

    `name`, `version`: by these a compiled file names it.
    `operators`: classes of operators.
    `examples`: cases for `--check-plugin`, at least one for each operator.
    `rules`: by operator, the `toolchain.ops.kit.rule.Rule` that makes operators of the chip of it, where it has its own tiles.
    `values`: by machine operation of the file, the function that computes it on the simulator.
    `draws`: by machine operation of the file, its instruction cases, as `toolchain.vectors.draws` has them.
    `rates`: by function of a vector engine, its entry in `functions` (`lanes`, `startup`), which `--check-plugin` adds to the
    machines that it tries.
    """

    name: str
    version: str
    operators: tuple[type[Operator], ...]
    examples: tuple[Example, ...] = ()
    rules: Mapping[type[Operator], Any] = field(default_factory=lambda: MappingProxyType({}))
    values: Mapping[type, Callable[..., None]] = field(default_factory=lambda: MappingProxyType({}))
    draws: Mapping[type, Callable[..., Any]] = field(default_factory=lambda: MappingProxyType({}))
    rates: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass
class Steps(StepBuilder):
    """A builder of steps: nodes of standard ONNX operators (opset 21) in order, and the constants they read.

    `types`: type of each input.
    `prefix`: begins the names of all steps and of their tensors.
    """

    types: Mapping[str, TensorType]
    prefix: str

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input of the operator."""
        return self.types[name].shape

    def constant(self, value: float | Sequence[float] | Array) -> str:
        """Define a constant and return its name. Integers in a list are int64, all other Python numbers float32; arrays keep
        their type."""
        return self.define_constant(f"{self.prefix}/constant_{len(self.constants)}", value)

    def add(self, op_type: str, *inputs: Operand, outputs: int = 1, **attributes: Any) -> Any:
        """Add a step and return the name of its output, or of each where `outputs` is more than 1.

        `inputs`: names of tensors, or values of constants; None for an absent one.
        """
        names = [self.constant(x) if x is not None and not isinstance(x, str) else x for x in inputs]
        step = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        output_names = tuple(f"{step}_{i}" if i else step for i in range(outputs))
        values = {key: tuple(value) if is_list(value) else value for key, value in attributes.items()}
        self.append(step, op_type, names, output_names, values)
        return output_names[0] if outputs == 1 else output_names


@dataclass(frozen=True)
class LoadedPlugin:
    """A plug-in that was loaded from a file.

    `digest`: SHA-256 of the file, in hex.
    `call`: calls a function of the file, so that whatever it raises becomes a CompileError: what is called, the function, its
    arguments.
    `owned`: what the plug-in has added to the tables of the toolchain by name: integer operators and machine operations.
    """

    plugin: Plugin
    file: Path
    digest: str
    call: Callable[..., Any]
    owned: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the name, the version and the beginning of the digest."""
        return f"{self.plugin.name} {self.plugin.version} (digest {self.digest[:12]})"


_LOADED: dict[str, LoadedPlugin] = {}


def get_plugins() -> dict[str, LoadedPlugin]:
    """Return the plug-ins of this process by name. It is the registry itself, to which `toolchain.plugin_loading` adds."""
    return _LOADED


def operator_name(operator: type[Operator]) -> str:
    """Return the ONNX name of an operator."""
    return operator.NAME or operator.__name__


def find_operator(domain: str, op_type: str) -> tuple[LoadedPlugin, type[Operator]] | None:
    """Return the loaded plug-in that defines an operator, and its class; None where no plug-in does."""
    for loaded in _LOADED.values():
        for operator in loaded.plugin.operators:
            if (operator.DOMAIN, operator_name(operator)) == (domain, op_type):
                return loaded, operator
    return None


def find_rule(domain: str, op_type: str) -> Any:
    """Return the rule by which a plug-in's operator has its own tiles; None where it has none or no plug-in defines the
    operator."""
    definition = find_operator(domain, op_type)
    return None if definition is None else definition[0].plugin.rules.get(definition[1])


def attribute_defaults(operator: type[Operator]) -> dict[str, Any]:
    """Return the default of each attribute by its name; `dataclasses.MISSING` for one that is required."""
    return {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(operator)}  # type: ignore[arg-type]


def input_counts(operator: type[Operator]) -> tuple[int, int]:
    """Return the least and the largest number of inputs that `compute` takes."""
    parameters = [*inspect.signature(operator.compute).parameters.values()][1:]
    return sum(p.default is inspect.Parameter.empty for p in parameters), len(parameters)
