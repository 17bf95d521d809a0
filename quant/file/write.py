"""Writes quantization parameters as a YAML file that users may edit, with the codes that repair chose in a second file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quant.file.parameters import Parameters
from quant.file.schema import VERSION
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.observe import Range
from quant.repair.file import array_file, pack_layers, section_of
from toolchain.foundation.atomic_files import write_atomically, write_files
from toolchain.foundation.type_guards import is_dict, is_mapping
from toolchain.ir.graph import Quant


def render_parameters(parameters: Parameters, arrays: tuple[str, bytes] | None = None) -> str:
    """Return the file's text; reading it back gives the same parameters, every float to the last bit.

    `arrays`: name and bytes of the file with the codes that repair chose; None: codes of layers are left out.
    """
    lines = [
        "# Quantization parameters. Edit them and give the file back with --quant.",
        "# A tensor has either low and high, the real values to be covered (the build chooses the scale that its machine can",
        "# express), or scale and zero_point: real = scale * (code - zero_point). type, such as int16, gives it codes of another",
        "# type than the machine's first, where the machine has it. values, below and above: how many values low and high were",
        "# measured on, and how far others lie beyond, in the mean: the build leaves room for these, and without them none.",
        "# step: what all values of an input are whole multiples of: the build takes a scale that holds them where there is one.",
        f"version: {VERSION}",
        f"model: {_text(parameters.model)}",
        f"hardware: {_text(parameters.hardware)}",
        f"observer: {_text(parameters.observer)}",
        f"samples: {parameters.samples}",
        f"data: {_text(parameters.data)}",
        *(() if parameters.repair is None else _repair_lines(section_of(parameters.repair, arrays))),
        *_weight_lines(parameters),
        "tensors:" if parameters.tensors else "tensors: {}",
    ]
    for name, entry in parameters.tensors.items():
        if isinstance(entry, Quant):
            value = f"scale: {_number(entry.scale)}, zero_point: {entry.zero_point}"
        else:
            value = f"low: {_number(entry.low)}, high: {_number(entry.high)}{_tails_text(entry)}"
            value += "" if entry.step is None else f", step: {_number(entry.step)}"
        if name in parameters.types:
            value += f", type: {parameters.types[name]}"
        source = " ".join(parameters.sources.get(name, "").split())
        lines.append(f"  {_text(name)}: {{{value}}}" + (f"  # {source}" if source else ""))
    return "\n".join(lines) + "\n"


def _tails_text(r: Range) -> str:
    """Return the keys of how far values lie beyond a range, empty where none is known to."""
    if r.tails is None or not (r.tails.below or r.tails.above):
        return ""
    return f", values: {r.tails.values}, below: {_number(r.tails.below)}, above: {_number(r.tails.above)}"


def _weight_lines(parameters: Parameters) -> Iterator[str]:
    """Yield the lines of the section `weights`, one for each layer that has its own scales or type; none where no layer has."""
    scales, types = parameters.weights, parameters.weight_types
    if scales or types:
        yield "weights:"
    for name in dict.fromkeys((*scales, *types)):
        entries = [f"scales: {_scales_text(scales[name])}"] if name in scales else []
        entries += [f"type: {types[name]}"] if name in types else []
        yield f"  {_text(name)}: {{{', '.join(entries)}}}"


def _scales_text(scaling: WeightScaling) -> str:
    """Return what has one scale: so many weights of a group, the tensor, or each channel."""
    return str(scaling.group) if scaling.group else "tensor" if scaling.axis is None else "channel"


def write_parameters(path: Path, parameters: Parameters) -> None:
    """Write a parameters file atomically: an older file stays until the new one is complete.

    Codes of weights, where repair chose some, go to `NAME.weights.npz` beside it; both appear together or not at all.
    """
    repair = parameters.repair
    if repair is None or not repair.quantization.layers:
        write_atomically(path, render_parameters(parameters).encode())
        return
    codes_path, data = array_file(path), pack_layers(repair.quantization.layers)
    write_files({codes_path: data, path: render_parameters(parameters, (codes_path.name, data)).encode()})


def _repair_lines(section: Mapping[str, Any]) -> list[str]:
    """Return the lines of the section `repair`: one for each entry of its lists and mappings."""
    lines = [
        "# What repair changed (docs/repair.md): edit or remove steps' choices by their keys; `steps` are only read.",
        "repair:",
    ]
    for key, value in section.items():
        if is_dict(value) and key != "arrays":
            lines += [f"  {key}:", *(f"    {_text(name)}: {_flow(entry)}" for name, entry in value.items())]
        elif key == "steps":
            lines += [f"  {key}:" if value else f"  {key}: []", *(f"    - {_flow(entry)}" for entry in value)]
        else:
            lines.append(f"  {key}: {_flow(value)}")
    return lines


def _flow(value: Any) -> str:
    """Return a value as YAML in flow style, floats to the last bit."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return _number(value) if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return _text(value)
    if is_mapping(value):
        return "{" + ", ".join(f"{key}: {_flow(entry)}" for key, entry in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]"


def _number(value: float) -> str:
    """Return the shortest text that reads back as the same float; YAML 1.1 wants a point before an exponent."""
    text = repr(float(value))
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _text(value: str) -> str:
    """Return a text as a double-quoted YAML scalar."""
    escaped = "".join(
        c if c.isprintable() and c not in '"\\' else f"\\{c}" if c in '"\\' else f"\\U{ord(c):08X}" for c in value
    )  # fmt: skip
    return f'"{escaped}"'
