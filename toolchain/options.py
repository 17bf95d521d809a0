"""Define the options of a build, as `toolchain.api.build` and the command npu-build take them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from quant.calibrate import OBSERVERS, ObserverName
from quant.memory_data import as_data
from toolchain.codegen import MAIN
from toolchain.errors import CompileError
from toolchain.foundation.entry_points import entry_in_errors
from toolchain.foundation.inference import host_providers
from toolchain.input_limits import ENTRIES
from toolchain.isa import Machine
from toolchain.passes.pass_options import EVERY_PASS, PassOptions
from toolchain.repair.calibrate_network import AUTO
from toolchain.repair.repair_pipeline import EFFORTS, Effort
from toolchain.report.gate import OPEN, Gate
from toolchain.schedule.goals import BALANCED, OBJECTIVES, Goal
from toolchain.schedule.options import LEVELS

Shapes = Mapping[str, tuple[int, ...]]  # of inputs
Values = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class BuildOptions:
    """The options of one build: the machine and the data by position, all others by name, in the groups of `npu-build --help`.

    `hardware`: a shipped name, a YAML file, or a loaded machine.
    `calibration`: data to calibrate on: a path, FILE.py:FUNCTION, arrays, an iterable, a reader or a function
    (docs/python.md); None: random inputs.

    Model:
    `shapes`: the shape of each input that the model leaves open, by name.
    `entries`: shapes of inputs beside `shapes`, by name; the file has programs for each set.
    `values`: inputs that are constants, as numbers by name. `entry_values`: the same of single entries.
    `states`: PAST=PRESENT each, inputs that are these outputs of the run before, or `none`. None: those that the graph or
    names show.
    `host_nodes`: nodes of the model, their operators, or patterns of either, that stay on the host.
    `host`: where host subgraphs and float models run: cpu or cuda.
    `plugins`: files of plug-ins, or names of installed ones, that define operators of the model (docs/plugins.md).
    `custom_ops`: libraries of onnxruntime's custom operators, which run operators of other domains on the host.

    Quantization:
    `parameters`: a parameters file of calibrate.py, perhaps edited; None: ranges are calibrated.
    `samples`: how many samples of `calibration` are read; None: all.
    `observer`: how ranges are chosen from the samples; None: as the machine or the data ask.
    `static_ranges`: calibrate tensors that the model quantizes by each run's range.
    `types`: NAME=TYPE, as in `passes.type_overrides.resolve_type_overrides`.
    `repair`: steps beyond calibration; None: `fast` where calibration has samples enough.
    `max_slowdown`: times the expected cycles that repair may take for wider codes; 1 for none.
    `host_ports`: nodes beside inputs and outputs run on the host, and outputs are scaled by channel, where codes would lose a
    part.
    `raw_ports`: inputs and outputs that `host_ports` leaves as they are, since hardware fills or reads their codes.

    Planning:
    `level`: from 0 to 3, as -O.
    `goal`: the objective of planning, and the bytes of SRAM to plan within.
    `schedule`: a file of schedules for regions; None: they are searched.
    `sram_curve`: also plan for other sizes of the SRAM.
    `time_limit_s`: seconds after which searches for plans end. `search_steps`: steps after which they end, on any machine.
    None: no limit.
    `blocks_alike`: identical blocks of layers are quantized as one.
    `passes`: optional passes that are left out, and whether each graph is verified.

    Judging:
    `judge`: data to judge on, in the same forms; None: samples held out of calibration. `judges`: the same of single entries.
    `gate`: the accuracy that every entry must reach.
    `error_report`: measure every layer's error.

    Output:
    `export_qdq`: also make an ONNX model of the integers. `export_nearest`: layers round once in it, whatever the machine does.
    `explain`: also try keys of the machine, each alone, by timing the program again.

    Raises CompileError for values that an option does not take, and for options that contradict each other.
    """

    hardware: str | Machine
    calibration: Any = None
    _: KW_ONLY

    shapes: Shapes = field(default_factory=dict[str, tuple[int, ...]])
    entries: Mapping[str, Shapes] = field(default_factory=dict[str, Shapes])
    values: Values = field(default_factory=dict[str, tuple[str, ...]])
    entry_values: Mapping[str, Values] = field(default_factory=dict[str, Values])
    states: tuple[str, ...] | None = None
    host_nodes: tuple[str, ...] = ()
    host: str = "cpu"
    plugins: tuple[str, ...] = ()
    custom_ops: tuple[str, ...] = ()

    parameters: str | None = None
    samples: int | None = None
    observer: ObserverName | Literal["auto"] | None = None
    static_ranges: bool = False
    types: tuple[str, ...] = ()
    repair: Effort | None = None
    max_slowdown: float = 1.1
    host_ports: bool = True
    raw_ports: tuple[str, ...] = ()

    level: int = 2
    goal: Goal = BALANCED
    schedule: str | None = None
    sram_curve: bool = False
    time_limit_s: float | None = None
    search_steps: int | None = None
    blocks_alike: bool = False
    passes: PassOptions = EVERY_PASS

    judge: Any = None
    judges: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gate: Gate = OPEN
    error_report: bool = False

    export_qdq: bool = False
    export_nearest: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        """Check all options, and bring data into the forms that are opened.

        Raise CompileError for values of another kind or out of range, data in no form that is read, and options that exclude
        each other.
        """
        self._require_kinds()
        self._accept_data()
        if type(self.level) is not int or not 0 <= self.level < len(LEVELS):
            raise CompileError(f"level {self.level!r}: must be a whole number from 0 to {len(LEVELS) - 1}")
        if self.goal.objective not in OBJECTIVES:
            raise CompileError(f"optimize {self.goal.objective}: must be one of {', '.join(OBJECTIVES)}")
        if self.sram_curve and (self.entries or self.goal.sram_bytes is not None):
            other = "entry" if self.entries else "sram-budget"
            raise CompileError(f"sram-curve: is of one set of shapes and of sizes of its own; leave out --{other}")
        self._require_search_limit()
        if self.raw_ports and not self.host_ports:
            raise CompileError("raw-port: --no-host-ports keeps one scale at every port; give one of them")
        if not self.max_slowdown >= 1:
            raise CompileError(f"max-slowdown {self.max_slowdown:g}: must be 1 or more, where 1 keeps all codes as they are")
        if self.observer not in (*OBSERVERS, AUTO, None):
            raise CompileError(f"observer {self.observer}: must be one of {', '.join((*OBSERVERS, AUTO))}")
        if self.repair not in (*EFFORTS, None):
            raise CompileError(f"repair {self.repair}: must be one of {', '.join(EFFORTS)}")
        if self.repair not in (None, "none") and self.parameters is not None:
            raise CompileError(f"repair {self.repair}: {self.parameters} holds what is built already; give one of them")
        host_providers(self.host)
        self._require_entries()
        self._require_start()
        self._require_data()

    def _require_kinds(self) -> None:
        """Raise CompileError for values of other types than an option takes."""
        if not isinstance(cast(object, self.hardware), str | os.PathLike | Machine):
            kind = type(self.hardware).__name__
            raise CompileError(f"hardware: is {kind}; give a machine's name, the path of a YAML file, or a loaded machine")
        for name in ("host_nodes", "types", "raw_ports", "plugins", "custom_ops", "states"):
            value = getattr(self, name)
            if isinstance(value, str):  # a sequence too, of its letters
                raise CompileError(f"{name}: is text; give a tuple of texts, ({value!r},)")
        if not isinstance(cast(object, self.goal), Goal):
            raise CompileError(f"goal: is {self.goal!r}; give a toolchain.api.Goal, such as Goal({OBJECTIVES[0]!r})")
        if self.samples is not None and not is_whole_number(self.samples):
            raise CompileError(f"samples {self.samples!r}: must be a whole number")
        if self.samples is not None and self.samples < 1:
            raise CompileError(f"samples {self.samples}: must be 1 or more")
        for name, shape in self.shapes.items():
            if not _is_shape(shape):
                raise CompileError(f"shapes: {name!r} is {shape!r}; give whole numbers, as in {{{name!r}: (1, 3, 224, 224)}}")

    def _require_search_limit(self) -> None:
        """Raise CompileError for a limit of searches that is none, or has no searches."""
        seconds, steps = self.time_limit_s, self.search_steps
        if seconds is not None and not seconds > 0:
            raise CompileError(f"time-limit {seconds:g}: must be more than 0 seconds")
        if steps is not None and steps < 0:
            raise CompileError(f"search-steps {steps}: must be 0 or more")
        if seconds is not None and steps is not None:
            raise CompileError(f"time-limit {seconds:g}: --search-steps ends the searches too; give one of them")
        if seconds is None and steps is None:
            return
        limit = f"search-steps {steps}" if seconds is None else f"time-limit {seconds:g}"
        if self.schedule is not None:
            raise CompileError(f"{limit}: --schedule {self.schedule} leaves nothing to search; give one of them")
        if self.sram_curve:
            raise CompileError(f"{limit}: the plans of --sram-curve are searched in full; give one of them")

    def _require_start(self) -> None:
        """Raise CompileError for options that have no effect on the graph of a stage that is read from a text."""
        start = self.passes.start
        if start is None:
            return
        if self.entries:
            raise CompileError("start-from: is the graph of one set of shapes; leave out --entry")
        without_effect = {
            "repair": None if self.repair == "none" else self.repair,
            "observer": self.observer,
            "type": next(iter(self.types), None),
            "quant": self.parameters,
        }
        for option, value in without_effect.items() if start.is_integer else ():
            if value is not None:
                raise CompileError(
                    f"start-from: the graph behind {start.stage} is quantized already; leave out --{option} {value}"
                )
        # Repair judges what it tries by the model, and selects from it anew, so that it would lose what was edited.
        repairing = {"repair": without_effect["repair"], "observer": AUTO if self.observer == AUTO else None}
        for option, value in repairing.items():
            if value is not None:
                raise CompileError(f"start-from: repair works on the model, not on a text; leave out --{option} {value}")

    def _accept_data(self) -> None:
        """Bring calibration and judging data into the forms that are opened. Raise CompileError for others."""
        object.__setattr__(self, "calibration", as_data(self.calibration, "calibration data", self.samples))
        object.__setattr__(self, "judge", as_data(self.judge, "judging data"))
        judges = {name: as_data(data, f"judging data of entry {name}") for name, data in self.judges.items()}
        object.__setattr__(self, "judges", judges)

    @property
    def planned_for(self) -> Goal:
        """Return the goal, with what other options ask of plans."""
        return replace(self.goal, shares_blocks=self.blocks_alike)

    @property
    def judged(self) -> str | None:
        """Return the name of an option that asks how accurate the build is, without its dashes; None where there is none."""
        requests = {"error-report": self.error_report, **dict.fromkeys(self.gate.options, True), "judge": self.judge is not None}
        return next((option for option, is_requested in requests.items() if is_requested), None)

    def _require_data(self) -> None:
        """Raise CompileError where accuracy is asked for and only random inputs are there."""
        if self.judges:
            self.each()
            return
        without_data = self.calibration is None and self.judge is None
        if self.judge is not None and self.calibration is None and self.parameters is None:
            raise CompileError(f"judge {self.judge}: what was calibrated on random inputs means nothing; give --calib or --quant")
        if without_data and self.judged:
            raise CompileError(
                f"{self.judged}: random inputs say nothing of accuracy; give --calib DATA, or --quant FILE and --judge DATA"
            )

    def _require_entries(self) -> None:
        """Raise CompileError for entries that are too many, have no valid name, or repeat what is given for all entries."""
        if len(self.entries) > ENTRIES:
            raise CompileError(f"entry: {len(self.entries)} are given, a file holds {ENTRIES} at most; make several files")
        for name, shapes in self.entries.items():
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", name):
                raise CompileError(f"entry {name}: a name has 1 to 64 letters, digits, '_' and '-', and does not begin with '-'")
            twice = next((n for n in shapes if n in self.shapes), None)
            if twice is not None:
                raise CompileError(
                    f"entry {name}: input {twice!r} has a shape by --shape, which is for all entries; give one of them"
                )
        unknown = next((name for name in self.judges if name not in self.entries), None)
        if unknown is not None:
            raise CompileError(
                f"judge {unknown}:{self.judges[unknown]}: there is no such entry; give --entry {unknown}:INPUT=SHAPE"
            )

        for name, values in self.entry_values.items():
            if name not in self.entries:
                raise CompileError(f"value {name}:{next(iter(values))}: there is no such entry; give --entry {name}:INPUT=SHAPE")
            twice = next((n for n in values if n in self.values), None)
            if twice is not None:
                raise CompileError(f"value {name}:{twice}: input {twice!r} has a value for all entries; give one of them")

    def each(self) -> dict[str, BuildOptions]:
        """Return the options of each entry by its name, with the common ones merged in; a build without entries has the one
        entry MAIN."""
        if not self.entries:
            return {MAIN: self}
        options_by_entry = dict[str, BuildOptions]()
        for name, shapes in self.entries.items():
            with entry_in_errors(name):
                judge, values = self.judges.get(name, self.judge), {**self.values, **self.entry_values.get(name, {})}
                entry_shapes = {**self.shapes, **shapes}
                options_by_entry[name] = replace(
                    self, shapes=entry_shapes, judge=judge, values=values, entries={}, judges={}, entry_values={}
                )
        return options_by_entry


def _is_shape(value: object) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return False
    return all(map(is_whole_number, cast(Iterable[object], value)))


def is_whole_number(value: object) -> bool:
    """Return whether a value is an integer of Python or numpy, no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
