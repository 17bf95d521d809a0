"""Try keys of the machine's file: time the same program again on a machine with one key changed.

`--explain` prints the key that helps most, and every build warns of layers far above their bounds that a key or option helps.
The changes come from report.key_changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator import StallCause
from toolchain.codegen import Container, Region
from toolchain.compiler import time_region
from toolchain.errors import format_count
from toolchain.isa import Machine
from toolchain.options import BuildOptions
from toolchain.report.key_changes import CauseCycles, KeyChange, change_chip, list_changes, rank_causes
from toolchain.report.layer_breakdown import layer_cycles
from toolchain.schedule.options import LEVELS

_CAUSES = 3  # of most cycles, whose keys are tried, at most two of each (docs/bounds.md: what that takes)
_SHARE = 0.05  # of the cycles: no key of a smaller cause can gain more
_SLOW = 5  # docs/bounds.md: times its bound
_LAYER_SHARE = 0.1  # docs/bounds.md: of the network's cycles
_FEWEST_CYCLES = 100_000  # docs/bounds.md: of a network
_HELPS = 0.9  # of a layer's cycles: what a key leaves that helps
_AGAIN = 2  # times the bytes that must cross the DRAM port
_NAMED = 3  # layers in one warning


@dataclass(frozen=True)
class KeyTrial:
    """A timing with one key changed.

    `cycles`: cycles of the network; `layers`: by layer.
    """

    change: KeyChange
    cycles: int
    layers: Mapping[str, int]

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the changed key, its value before and after, and the cycles, as in the JSON report; without the layers."""
        return {"key": self.change.key, "before": self.change.before, "after": self.change.after, "cycles": self.cycles}


class KeyTrials:
    """The class times a network's program on machines with one key changed; each change is timed once. Host nodes are not
    timed, and the program stays as it is: it is not compiled for the changed machine.

    `container`: the compiled network.
    `figures`: those of the network on its own machine, as in the JSON report.
    `options`: those of the build, of which level and SRAM budget matter.
    """

    def __init__(self, container: Container, figures: Mapping[str, Any], options: BuildOptions) -> None:
        self._container, self._figures, self._options = container, figures, options
        self._time = cache(self._time_changed)

    def run(self) -> list[KeyTrial]:
        """Return the trials of keys on which the three largest causes of the network's cycles depend, that of fewest cycles
        first.

        They may take more cycles than the machine itself.

        Causes below a twentieth of the cycles, and causes without keys, do not count. The list is empty where none is left.
        """
        trials = self._try_causes(self._rank(self._figures))
        return sorted(trials, key=lambda trial: trial.cycles)

    def list_warnings(self) -> list[str]:
        """Return a warning for each key or option that helps layers far above their bounds.

        Only keys of such layers are timed. The list is empty for a network below 100,000 cycles.
        """
        if self._figures["cycles"] < _FEWEST_CYCLES:
            return []
        layers_by_option: dict[str, list[tuple[Mapping[str, Any], str]]] = {}
        for layer in filter(self._is_slow, self._figures["layers"]):
            helps = self._find_option(layer) or self._find_key(layer)
            if helps is not None:
                option, effect = helps
                layers_by_option.setdefault(option, []).append((layer, effect))
        return [self._describe(option, layers) for option, layers in layers_by_option.items()]

    def _is_slow(self, layer: Mapping[str, Any]) -> bool:
        """Return whether a layer takes more than five times its bound and a tenth of the network's cycles."""
        bound = layer["bounds"]["cycles"] if layer["bounds"] else 0
        return 0 < _SLOW * bound < layer["cycles"] and layer["cycles"] >= _LAYER_SHARE * self._figures["cycles"]

    def _rank(self, figures: Mapping[str, Any]) -> list[CauseCycles]:
        """Return the causes, largest first, of at least a twentieth of the cycles of `figures`: a network's or a layer's."""
        return [
            cause_cycles
            for cause_cycles in rank_causes(figures["attribution"] or {})
            if cause_cycles.cycles >= _SHARE * figures["cycles"]
        ]

    def _rank_waste(self, layer: Mapping[str, Any]) -> list[CauseCycles]:
        """Return a layer's causes, as `_rank`, without useful work of a MAC array, which is part of its bound."""
        arrays = {unit.name for unit in self._container.machine.chip.of_kind("mac_array")}
        return [
            cause_cycles
            for cause_cycles in self._rank(layer)
            if cause_cycles.cause is not StallCause.USEFUL or cause_cycles.of not in arrays
        ]

    def _find_option(self, layer: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the option or key that keeps bytes on the chip, with a clause on the bytes that cross the DRAM port.

        It is None where the layer does not mainly wait for DRAM, or moves at most twice the least bytes. Where the machine has
        several staging memories, none is named as too small.
        """
        moved = sum(layer["traffic"].get("dram", {}).get(kind, 0) for kind in ("read_bytes", "write_bytes"))
        least, chip = layer["bounds"]["dram_bytes"], self._container.machine.chip
        channels = {unit.name for unit in chip.of_kind("dma")}
        if moved <= _AGAIN * least or not any(
            cause_cycles.of in {"dram", *channels} for cause_cycles in self._rank_waste(layer)[:1]
        ):
            return None
        budget = self._options.goal.sram_bytes
        if not LEVELS[self._options.level].residency and self._count_tensor_bytes(layer["name"]) <= (budget or chip.sram.size):
            option = "-O2"
        elif budget is not None and budget < chip.sram.size:
            option = "a larger --sram-budget"
        elif len(chip.staging) > 1:  # which of the memories is too small is not known
            return None
        else:
            option = f"memories.sram.size above {chip.sram.size}"
        return option, f"{moved:,} DRAM bytes of which {least:,} must be moved"

    def _count_tensor_bytes(self, name: str) -> int:
        """Return the bytes of all tensors and constants that a layer reads and makes."""
        graph = self._container.graph
        node = next(node for node in graph.nodes if node.name == name)
        constants = sum(graph.constants[n].nbytes for n in node.inputs if n in graph.constants)
        maps = {n for n in (*node.inputs, *node.outputs) if n in graph.types and n not in graph.constants}
        return constants + sum(graph.types[n].size_bytes for n in maps)

    def _find_key(self, layer: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the key with which a layer takes fewest cycles, and a clause that tells these.

        It is None where no key saves a tenth of the layer's cycles and also some of the network's.
        """
        name, cycles = layer["name"], self._figures["cycles"]
        trials = self._try_causes(self._rank_waste(layer))
        helpful = [t for t in trials if t.layers[name] <= _HELPS * layer["cycles"] and t.cycles < cycles]
        best = min(helpful, key=lambda trial: trial.layers[name], default=None)
        return None if best is None else (best.change.describe(), f"{best.layers[name]:,} cycles with it")

    def _describe(self, option: str, layers: Sequence[tuple[Mapping[str, Any], str]]) -> str:
        """Return a warning on layers that one key or option helps; it names at most three of them."""
        shown = [
            f"{layer['name']} ({layer['cycles']:,} cycles, {layer['cycles'] / layer['bounds']['cycles']:.1f} times its bound; "
            f"{effect})"
            for layer, effect in layers[:_NAMED]
        ]
        more = f", and {len(layers) - _NAMED} more" if len(layers) > _NAMED else ""
        return f"{format_count(len(layers), 'layer')} far above what the units need; {option} helps: {', '.join(shown)}{more}"

    def _try_causes(self, causes: Sequence[CauseCycles]) -> list[KeyTrial]:
        """Return the trials of the keys of the first three causes that have any; changes that break a rule are left out."""
        changes_by_cause = [list_changes(self._container.machine.chip, cause_cycles) for cause_cycles in causes]
        tried = [changes for changes in changes_by_cause if changes][:_CAUSES]
        trials = [self._time(change) for change in dict.fromkeys(change for changes in tried for change in changes)]
        return [trial for trial in trials if trial is not None]

    def _time_changed(self, change: KeyChange) -> KeyTrial | None:
        """Return the trial of a change; None where the changed machine breaks a rule between sections."""
        chip = change_chip(self._container.machine.chip, change)
        if chip is None:
            return None
        machine, cycles, layers = Machine(chip, self._container.machine.isa), 0, dict[str, int]()
        for region in self._container.segments:
            if isinstance(region, Region):
                run = time_region(machine, region)
                cycles += run.cycles
                layers |= zip((info.name for info in region.layers), layer_cycles(region, run).tolist())
        return KeyTrial(change, cycles, layers)
