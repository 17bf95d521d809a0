"""List the points of a sweep, and make the job of each with the content hash by which its result is stored.

A point is one combination of network, machine, keys of the machine and options. The hash covers everything that a build depends
on, so that a stored result is found again only if nothing changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import quant
import simulator
import toolchain
from quant.calibration_data import data_files
from toolchain.errors import CompileError, system_cause
from toolchain.frontend.read_onnx import model_files
from toolchain.hw import change_keys, machine_files, read_yaml
from toolchain.sweep.sweep_file import Sweep, list_changes

RESULT_FORMAT = 1  # raised where a stored result of the same build means something else (docs/sweeps.md)
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, slots=True)
class Point:
    """One build of a sweep: names of a network and a machine, and the values of the machine's keys and of the options."""

    network: str
    machine: str
    keys: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Job:
    """All that a worker process needs to build one point.

    `key`: content hash of the build, in hexadecimal digits; folders and limits do not enter it.
    `code`: digest of the toolchain.
    `machine`: name or file of the machine; `changes`: new values of its keys.
    `network`: keys of the network's section.
    `options`: values of the build's options.
    `files`: digest of each file that the build reads, by path.
    `seconds`, `memory_bytes`: limits of the build; None: no limit.
    `plugins`, `custom_ops`: files.
    """

    key: str
    code: str
    machine: str
    changes: Mapping[str, Any]
    network: Mapping[str, Any]
    options: Mapping[str, Any]
    files: Mapping[str, str]
    seconds: float | None = None
    memory_bytes: int | None = None
    plugins: tuple[str, ...] = ()
    custom_ops: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[float | None, int | None]:
        """Return the limits (seconds, bytes), None for no limit."""
        return self.seconds, self.memory_bytes


def list_grid(sweep: Sweep) -> Iterator[Point]:
    """Yield every combination in the order of the file: networks, machines, keys, options."""
    for network in sweep.networks:
        for machine, section in sweep.machines.items():
            for keys in _combinations(section.keys):
                for options in _combinations(sweep.axes):
                    yield Point(network, machine, keys, options)


def _combinations(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Yield every combination of values of the axes as (name, value) pairs, the last axis fastest."""
    return (tuple(zip(axes, values)) for values in product(*axes.values()))


def count_grid(sweep: Sweep) -> int:
    """Return how many points the grid has."""

    def size(axes: Mapping[str, tuple[Any, ...]]) -> int:
        count = 1
        for values in axes.values():
            count *= len(values)
        return count

    return len(sweep.networks) * sum(size(machine.keys) for machine in sweep.machines.values()) * size(sweep.axes)


_NetworkFiles = tuple[dict[str, Any], dict[str, str], list[Any]]  # keys, digests by file, contents
_MachineFiles = tuple[Any, Any, dict[str, str]]  # machine, instruction table, digests by file


@dataclass
class JobMaker:
    """A maker of the jobs of a sweep that reads every file once. `code`: digest of the toolchain."""

    sweep: Sweep
    code: str = field(default_factory=lambda: code_digest())
    _digests: dict[str, str] = field(default_factory=dict[str, str])
    _networks: dict[str, _NetworkFiles] = field(default_factory=dict[str, _NetworkFiles])
    _machines: dict[str, _MachineFiles] = field(default_factory=dict[str, _MachineFiles])

    def make(self, point: Point) -> Job:
        """Return the job of a point. Raise CompileError or ConfigError for a file that cannot be read."""
        machine = self.sweep.machines[point.machine]
        network, network_files, contents = self._network(point.network)
        data, table, machine_digests = self._machine(point.machine)
        changes, options = dict(point.keys), dict(point.options)
        operator_files = {file: self._digest(Path(file)) for file in (*self.sweep.plugins, *self.sweep.custom_ops)}
        described = change_keys(data, list_changes(changes))
        described_build = [RESULT_FORMAT, self.code, described, table, contents, options, sorted(operator_files.values())]
        text = json.dumps(described_build, sort_keys=True, default=str)
        return Job(
            hashlib.sha256(text.encode()).hexdigest(),
            self.code,
            machine.file,
            changes,
            network,
            options,
            {**network_files, **machine_digests, **operator_files},
            self.sweep.limits.seconds,
            self.sweep.limits.memory,
            self.sweep.plugins,
            self.sweep.custom_ops,
        )

    def _network(self, name: str) -> tuple[dict[str, Any], dict[str, str], list[Any]]:
        """Return a network's keys, the digests of its files, and all that the build reads of it, without names of folders."""
        if name not in self._networks:
            keys = self.sweep.networks[name].model_dump(mode="json")
            groups = [model_files(Path(keys["model"])), *(_list_data_files(keys[k]) for k in ("calib", "quant"))]
            digests = [{str(file): self._digest(file) for file in sorted(files)} for files in groups]
            names = [[[Path(file).name, digest] for file, digest in group.items()] for group in digests[1:]]
            function = (keys["calib"] or "").rpartition(":")[2] if any(f.suffix == ".py" for f in groups[1]) else ""
            other_keys = {k: v for k, v in keys.items() if k not in ("model", "calib", "quant")}
            contents = [[*digests[0].values()], *names, function, other_keys]
            self._networks[name] = (keys, {f: d for group in digests for f, d in group.items()}, contents)
        return self._networks[name]

    def _machine(self, name: str) -> tuple[Any, Any, dict[str, str]]:
        """Return the data of a machine's file without its description, those of its instruction table (or None), and digests by
        file."""
        if name not in self._machines:
            file, table = machine_files(self.sweep.machines[name].file)
            data = read_yaml(file, str(file)).data
            data = {key: value for key, value in data.items() if key != "description"}
            table_data = None if table is None else read_yaml(table, str(table)).data
            digests = {str(one): self._digest(one) for one in (file, table) if one is not None}
            self._machines[name] = (data, table_data, digests)
        return self._machines[name]

    def _digest(self, file: Path) -> str:
        """Return the digest of a file, computed at the first call."""
        if str(file) not in self._digests:
            self._digests[str(file)] = file_digest(file)
        return self._digests[str(file)]


def _list_data_files(spec: str | None) -> list[Path]:
    """Return the files of data that a build reads: of a directory, those that are there."""
    files = [] if spec is None else data_files(spec)
    return files if len(files) == 1 else [file for file in files if file.exists()]


def file_digest(file: Path) -> str:
    """Return sha256 of a file in hexadecimal digits. Raise CompileError where it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as fault:
        raise CompileError(f"{file}: {system_cause(fault)}") from None


@cache
def code_digest() -> str:
    """Return sha256 of the source that builds, and of the versions of the libraries whose numbers a build depends on.

    The commands and this package do not count, since they change no build. It is computed once in a process.
    """
    digest = hashlib.sha256()
    for package in (toolchain, quant, simulator):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            if file.is_relative_to(Path(str(toolchain.__file__)).parent / "cli") or file.is_relative_to(Path(__file__).parent):
                continue
            digest.update(f"{root.name}/{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    versions = {d.metadata["Name"]: d.version for name in _LIBRARIES for d in importlib.metadata.distributions(name=name)}
    digest.update(json.dumps(versions, sort_keys=True).encode())
    return digest.hexdigest()
