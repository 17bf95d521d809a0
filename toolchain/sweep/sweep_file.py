"""Read a sweep file: a YAML of networks, machines with lists of values for their keys, options, and the limits of one build.

`read_sweep` checks it against the sections here, resolves its files, and returns a `Sweep`. Faults are told with file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator, Field

from toolchain.errors import NO_FILE, CompileError, ConfigError
from toolchain.foundation.inference import use_custom_ops
from toolchain.hw import Changes, Chip, KeyPath, Section, Source, is_shipped, read_yaml, render_path, suggest, validate
from toolchain.hw.section import Bytes
from toolchain.isa import load_machine
from toolchain.plugin_loading import load_plugins


def _as_list(value: Any) -> Any:
    """Return a list as a tuple, and any other value as a tuple of it alone."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else (value,)


_FILE_KEYS = ("model", "calib", "quant")  # of a network
T = TypeVar("T")
Axis = Annotated[tuple[T, ...], BeforeValidator(_as_list), Field(min_length=1)]  # one value or a list of them
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
Values = Annotated[tuple[Any, ...], Field(min_length=1)]


class NetworkSection(Section):
    """A model with its data and shapes; files are looked for beside the sweep file."""

    model: str
    calib: str | None = None
    quant: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    states: tuple[str, ...] | None = None
    types: tuple[str, ...] = ()
    host_nodes: tuple[str, ...] = ()


class MachineSection(Section):
    """A shipped machine or a file, and lists of values for some of its keys. Keys joined by commas in one name take the same
    value."""

    file: str
    keys: Mapping[str, Values] = Field(default_factory=dict)


class OptionSection(Section):
    """Options of npu-build, each with one value or a list of them; None: the option is not given."""

    level: Axis[Annotated[int, Field(ge=0, le=3)]] | None = None
    repair: Axis[str] | None = None
    observer: Axis[str] | None = None
    samples: Axis[Annotated[int, Field(ge=1)]] | None = None
    optimize: Axis[str] | None = None
    sram_budget: Axis[Bytes] | None = None
    static_ranges: Axis[bool] | None = None

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return the options that are given, each with its values."""
        return {name: values for name in type(self).model_fields if (values := getattr(self, name)) is not None}


class LimitSection(Section):
    """The limits of one build: seconds by the clock, bytes of memory. None: no limit."""

    seconds: Annotated[float, Field(gt=0)] | None = None
    memory: Bytes | None = None


class SweepSection(Section):
    """A sweep file as written. `plugins`: files, or names of installed plug-ins. `custom_ops`: libraries of onnxruntime."""

    networks: Annotated[Mapping[Name, NetworkSection], Field(min_length=1)]
    machines: Annotated[Mapping[Name, MachineSection], Field(min_length=1)]
    options: OptionSection = OptionSection()
    plugins: Axis[str] = ()
    custom_ops: Axis[str] = ()
    limits: LimitSection = LimitSection()


class Sweep(Section):
    """A sweep with the paths of its files made absolute.

    `axes`: the values of each option.
    `plugins`, `custom_ops`: files, which every build takes.
    """

    networks: Mapping[str, NetworkSection]
    machines: Mapping[str, MachineSection]
    axes: Mapping[str, tuple[Any, ...]]
    limits: LimitSection
    plugins: tuple[str, ...] = ()
    custom_ops: tuple[str, ...] = ()


def read_sweep(file: Path, plugins: Sequence[str] = (), custom_ops: Sequence[str] = ()) -> Sweep:
    """Read a sweep file, load its plug-ins and libraries into this process, and check the keys that its machines change.

    `plugins`, `custom_ops`: further ones; their paths are not relative to the sweep file.
    Raise ConfigError with all faults of the first check that fails: form, plug-ins, libraries, or files and keys. Raise
    CompileError for a further plug-in or library.
    """
    source = read_yaml(file, str(file), doubles=True)
    section, faults = validate(SweepSection, source)
    if section is None:
        raise ConfigError(faults)
    file_plugins = [_locate_plugin(name, file.parent) for name in section.plugins]
    file_libraries = [str(file.parent / name) for name in section.custom_ops]
    plugin_files = [*_load_each("plugins", file_plugins, source, _load_plugin), *map(_load_plugin, plugins)]
    libraries = [*_load_each("custom_ops", file_libraries, source, _load_library), *map(_load_library, custom_ops)]
    machines = {name: _locate_machine(machine, file.parent) for name, machine in section.machines.items()}
    networks = {name: _locate_network(network, file.parent) for name, network in section.networks.items()}
    faults = [fault for name, network in networks.items() for fault in _file_faults(name, network, source)]
    faults += [fault for name, machine in machines.items() for fault in _key_faults(name, machine, source)]
    if faults:
        raise ConfigError(faults)
    return Sweep(
        networks=networks,
        machines=machines,
        axes=section.options.axes,
        limits=section.limits,
        plugins=tuple(dict.fromkeys(plugin_files)),
        custom_ops=tuple(dict.fromkeys(libraries)),
    )


def key_paths(key: str) -> list[KeyPath]:
    """Return the paths of keys that are joined by commas: 'a.b, c' gives ('a', 'b') and ('c',)."""
    return [tuple(one.strip().split(".")) for one in key.split(",")]


def list_changes(keys: Mapping[str, Any]) -> Changes:
    """Return the changes that the keys of one point make in the machine's file."""
    return [(path, value) for key, value in keys.items() for path in key_paths(key)]


def _locate_plugin(name: str, folder: Path) -> str:
    """Return the path of a plug-in's file; the name of an installed plug-in stays."""
    is_file = Path(name).suffix == ".py" or (folder / name).is_file()
    return str(folder / name) if is_file else name


def _load_each(key: str, names: Sequence[str], source: Source, load: Callable[[str], str]) -> list[str]:
    """Load the files or names of one key of the sweep and return the files. Raise ConfigError with every fault."""
    files, faults = list[str](), list[str]()
    for index, name in enumerate(names):
        try:
            files.append(load(name))
        except CompileError as fault:
            faults.append(source.fault((key, index), str(fault)))
    if faults:
        raise ConfigError(faults)
    return files


def _load_plugin(name: str) -> str:
    """Load a plug-in, which the machines of the sweep may need, and return its file."""
    (loaded,) = load_plugins([name])
    return str(loaded.file.resolve())


def _load_library(name: str) -> str:
    """Let onnxruntime load a library of custom operators, and return its file."""
    use_custom_ops([name])
    return str(Path(name).resolve())


def _locate_machine(machine: MachineSection, folder: Path) -> MachineSection:
    """Return a machine whose file has an absolute path. A name stays one, shipped or unknown."""
    path = (folder / machine.file).resolve()
    is_path = not is_shipped(machine.file) and (path.suffix in (".yaml", ".yml") or path.is_file())
    return machine.model_copy(update={"file": str(path)}) if is_path else machine


def _locate_network(network: NetworkSection, folder: Path) -> NetworkSection:
    """Return a network whose files have absolute paths."""
    names = {name: getattr(network, name) for name in _FILE_KEYS}
    located = {name: _locate_spec(spec, folder) for name, spec in names.items() if spec is not None}
    return network.model_copy(update=located)


def _locate_spec(spec: str, folder: Path) -> str:
    """Return a file or file.py:function with an absolute path."""
    file, function = _split_spec(spec)
    return f"{(folder / file).resolve()}{function}"


def _split_spec(spec: str) -> tuple[str, str]:
    """Return the file of file.py:function, and the rest; of other files, all of the text."""
    file, colon, function = spec.rpartition(":")
    return (file, f"{colon}{function}") if file.endswith(".py") else (spec, "")


def _file_faults(name: str, network: NetworkSection, source: Source) -> list[str]:
    """Return a sentence for each file of a network that is not there."""
    specs = {key: getattr(network, key) for key in _FILE_KEYS}
    files = {key: Path(_split_spec(spec)[0]) for key, spec in specs.items() if spec is not None}
    missing = {key: file for key, file in files.items() if not file.exists()}
    return [source.fault(("networks", name, key), f"{file}: {NO_FILE}") for key, file in missing.items()]


def _key_faults(name: str, machine: MachineSection, source: Source) -> list[str]:
    """Return a sentence for each key that the machine does not have, or that two axes change, or for a machine that is not there.

    Raise ConfigError with the faults of the machine's own file.
    """
    try:
        chip = load_machine(machine.file).chip
    except ConfigError as fault:
        if Path(machine.file).is_file():
            raise
        return [source.fault(("machines", name, "file"), str(fault))]
    faults, paths = list[str](), dict[KeyPath, str]()
    for key in machine.keys:
        place = ("machines", name, "keys", key)
        for path in key_paths(key):
            reason = _unknown_key(chip, path)
            if reason is not None:
                faults.append(source.fault(place, f"{machine.file} has no key {render_path(path)}{reason}", at_key=True))
            elif path in paths:
                faults.append(source.fault(place, f"{render_path(path)} is also changed by {paths[path]!r}", at_key=True))
            paths[path] = key
    return faults


def _unknown_key(chip: Chip, path: KeyPath) -> str | None:
    """Return a hint for the first part of a path that the machine does not have; None: it has all of them."""
    data: Any = chip.model_dump(mode="json")
    for part in path:
        keys: dict[Any, Any] = cast("dict[Any, Any]", data) if isinstance(data, dict) else {}
        if part not in keys:
            return suggest(str(part), keys) if keys else ""
        data = keys[part]
    return None
