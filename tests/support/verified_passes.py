"""Every function of the compiler that gives a graph has it verified wherever the suite calls it; the fault names it."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
import typing
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from toolchain.ir.graph import Graph, verify

PACKAGES = ("toolchain.frontend", "toolchain.passes", "toolchain.repair", "toolchain.export")
PROJECT = ("toolchain", "quant")
_SOUND: deque[Graph] = deque(maxlen=8)  # verified last; graphs are frozen


class BrokenGraph(AssertionError):
    """A pass gave a graph that breaks the rules of `toolchain.ir`."""


def passes() -> dict[str, Callable[..., Any]]:
    """Return the functions that give a graph, by module and name."""
    return {f"{f.__module__}.{f.__name__}": f for module in _modules() for f in _passes(module)}


def install() -> None:
    """Puts the checked function in the place of each pass, in every module that holds it; those imported later find it where
    it was defined."""
    checked = {id(f): verify_pass(f) for f in passes().values()}
    for module in [m for name, m in sys.modules.items() if name.split(".")[0] in PROJECT]:
        for name, value in list(vars(module).items()):
            if id(value) in checked and inspect.isfunction(value):
                setattr(module, name, checked[id(value)])


def verify_pass(one_pass: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; raises BrokenGraph where a graph in what it gives has faults.

    Most passes give a graph that a pass inside them gave, or that they were given; those are not verified again.
    """

    @functools.wraps(one_pass)
    def checked(*args: Any, **kwargs: Any) -> Any:
        result = one_pass(*args, **kwargs)
        for graph in graphs_in(result):
            if any(graph is sound for sound in _SOUND):
                continue
            faults = verify(graph)
            if faults:
                raise BrokenGraph(f"{one_pass.__module__}.{one_pass.__name__} gave a broken graph: " + "; ".join(faults))
            _SOUND.append(graph)
        return result

    return checked


def graphs_in(result: Any) -> Iterator[Graph]:
    """Yield the graphs in a result.

    `result`: a graph, an object that has one as a field, or a tuple of such.
    """
    if isinstance(result, Graph):
        yield result
    elif isinstance(result, tuple):
        for part in result:
            yield from graphs_in(part)
    elif is_dataclass(result):
        yield from (v for f in fields(result) if isinstance(v := getattr(result, f.name), Graph))


def _modules() -> Iterator[ModuleType]:
    for package in map(importlib.import_module, PACKAGES):
        yield package
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(module.name)


def _passes(module: ModuleType) -> Iterator[Callable[..., Any]]:
    for value in vars(module).values():
        is_local = inspect.isfunction(value) and value.__module__ == module.__name__
        if is_local and _gives_graph(typing.get_type_hints(value).get("return")):
            yield value


def _gives_graph(kind: Any, inside: bool = False) -> bool:
    origin = typing.get_origin(kind) or kind
    if origin is Graph:
        return True
    if origin is tuple:
        return any(_gives_graph(part) for part in typing.get_args(kind))
    if inside or not (isinstance(origin, type) and is_dataclass(origin)):
        return False
    return any(_gives_graph(typing.get_type_hints(origin)[f.name], inside=True) for f in fields(origin))
