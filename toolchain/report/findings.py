"""Define what is reported on each layer's loss (`LayerError`), the advice against it (`Advice`) and how its trial went.

The module report.diagnosis makes the findings, judging.try_advice tries the advice, and report.accuracy and report.error_page
print both. The constants are explained in docs/accuracy.md.

A trial helps from HELPS_DB on, where half of the noise is gone. It also helps where it needs at most LESS_TIME of the seconds
of chip and host and costs the worst part at most KEEPS_DB. Of an output that is not low it has to gain FINE_GAIN_DB, which
leaves a tenth of the noise. A tensor with LOST_DB more than what is made of it is not to blame. Levels below _ZERO_DB are
printed as 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quant.calibrate import ObserverName
from quant.observe import Range
from toolchain.errors import format_count
from toolchain.foundation.type_guards import is_tuple
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Quant
from toolchain.report.comparison_blocks import ComparisonBlock
from toolchain.report.layer_types import LayerTypes
from toolchain.report.report_text import format_seconds

Cause = Literal[
    "clipped tail",
    "range dominated by few values",
    "range wider than its values",
    "coarse output scale",
    "weight rounding",
    "cancelling operands",
    "steep function",
    "accumulator overflow",
    "input rounding",
    "nothing lost",
]


_ZERO_DB = 0.05


@dataclass(frozen=True)
class Advice:
    """A change of options that may help a layer: `text`, as the user gives it, and what it changes.

    `host_nodes`: nodes of the model that go to the host.
    `types`: entries of `--type`.
    `observer`: the observer instead; None: as it is.
    `ranges`: ranges that tensors get.
    `freed_ports`: inputs and outputs that no option pins any more.
    `hosts_steps`: it leaves an operator to the host that the chip computes in steps, which may take many of its cycles.
    Without any of these, the advice is to change the machine.
    """

    text: str
    host_nodes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    observer: ObserverName | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    freed_ports: tuple[str, ...] = ()
    hosts_steps: bool = False

    @property
    def can_be_tried(self) -> bool:
        """Return whether options of a build express the change; a change of the machine's file cannot be tried."""
        return bool(self.host_nodes or self.types or self.observer or self.ranges or self.freed_ports)


@dataclass(frozen=True)
class StepAdvice:
    """Advice to leave operators to the host that the chip computes in steps.

    `tensors`: tensors of the model that these operators make.
    `is_always_tried`: also where no output is low.
    """

    advice: Advice
    tensors: frozenset[str]
    is_always_tried: bool


@dataclass(frozen=True)
class RunCost:
    """The cost of a run: simulated cycles of the chip, and seconds of the host by the machine's prices."""

    cycles: int
    clock_hz: float
    host_seconds: float

    @property
    def seconds(self) -> float:
        """Return the time of chip and host, one after the other."""
        return self.cycles / self.clock_hz + self.host_seconds


@dataclass(frozen=True)
class TriedAdvice:
    """A remedy with dB of the worst part of an output before and after it, both on the first `samples` judging samples.

    `costs`: of a run before and after; None where they were not compared.
    """

    advice: Advice
    before_db: float
    after_db: float
    samples: int

    costs: tuple[RunCost, RunCost] | None = None

    @property
    def gain_db(self) -> float:
        """Return the gain of the worst part in dB."""
        return self.after_db - self.before_db

    @property
    def gains(self) -> bool:
        """Return whether the worst part gains at least HELPS_DB."""
        return self.gain_db >= HELPS_DB

    @property
    def helps(self) -> bool:
        """Return whether the worst part gains, or keeps what it has in much less time."""
        return self.gains or self.is_faster

    @property
    def is_faster(self) -> bool:
        """Return whether the remedy takes steps off the chip, costs the worst part at most KEEPS_DB, and needs at most
        LESS_TIME of the seconds.

        Without costs the answer is False.
        """
        if self.costs is None or not self.advice.hosts_steps:
            return False
        before, after = self.costs
        return self.gain_db >= -KEEPS_DB and after.seconds <= LESS_TIME * before.seconds

    def describe(self) -> str:
        """Return the remedy with what it gives; a level below 0 dB is told as an error of so many times the signal."""
        return f"{self.advice.text} ({format_levels(self.after_db, self.before_db)}{self._describe_costs()})"

    def _describe_costs(self) -> str:
        if self.costs is None:
            return ""
        before, after = self.costs
        more_seconds = after.host_seconds - before.host_seconds
        host = f", about {format_seconds(more_seconds)} more of the host" if more_seconds > 0 else ""
        return f", {after.cycles:,} cycles for {before.cycles:,}{host}"


def format_levels(after_db: float, before_db: float) -> str:
    """Return a level and the one before it in dB, or as multiples of the signal where an error exceeded that."""
    after = "exact" if after_db == math.inf else f"{after_db:.1f} dB"
    if before_db > -_ZERO_DB:
        return f"{after} for {before_db:.1f}"
    before = f"{10 ** (-before_db / 20):,.1f} times"
    if after_db > _ZERO_DB:
        return f"{after} for an error of {before} the worst part's signal"
    return f"an error of {10 ** (-after_db / 20):,.1f} times the worst part's signal for {before}"


def choose_trial(trials: Sequence[TriedAdvice]) -> TriedAdvice | None:
    """Return the remedy to name: the first that is within LOST_DB of the best one's level; None where none helps.

    Remedies that only save time count where none gains.
    """
    helping = [t for t in trials if t.gains] or [t for t in trials if t.helps]
    most = max((t.after_db for t in helping), default=0.0)
    return next((t for t in helping if t.after_db >= most - LOST_DB), None)


def format_trials(trials: Sequence[TriedAdvice]) -> str:
    """Return the remedy that helped, or all with the remark that none did; an empty text where nothing was tried."""
    if not trials:
        return ""
    best = choose_trial(trials)
    if best is not None:
        return f"tried on {format_count(best.samples, 'sample')}: {best.describe()}"
    counts = sorted({t.samples for t in trials})
    on = f"{counts[0]} to {counts[-1]} samples" if len(counts) > 1 else format_count(counts[0], "sample")
    return f"tried on {on}, none of which helps: {', '.join(t.describe() for t in trials)}"


@dataclass(frozen=True)
class AdviceContext:
    """The machine and the options of the build, which decide what advice applies.

    `file_ranges`: scale or range of each model tensor in the file of `--quant`; None without the file.
    `file`: that file's name.
    `observer`: observer of the calibration.
    `repair`: effort of `--repair` that was run; None where there was none.
    """

    chip: Chip
    observer: str
    file_ranges: Mapping[str, Range | Quant] | None = None
    file: str | None = None
    repair: str | None = None


@dataclass(frozen=True)
class LayerError:
    """The error of one block, as SQNR in dB against float.

    `layer`: the node that it is named for, None for a tensor that enters a region.
    `op`: its operator's class, or `host` or `input` for such a tensor.
    `nodes`: nodes of the model itself.
    `tensor`: tensor of the model's canonical form.
    `name`: source name that users see.
    `types`: types of the float tensors that feed it, of its tensor, and of its weights.
    `alone_db`: fed with float's tensors.
    `own_db`: rounding of its tensor, with no computation.
    `accumulated_db`: in the network's own run, None where that was not measured.
    `weights_db`: rounded weights, None without weights or where they were not measured.
    `activations_db`: all but the rounded weights.
    `at_int16_db`: alone, with 16 bits for 8 and no clipping.
    `clipped_share`: share of its values outside its codes, 0 to 1.
    `effect_db`: the worst output where this error alone is put into float, None where that was not tried.
    `cause`, `why`: the cause and what was measured of it; None and empty before a diagnosis.
    `remedy`, `advice`: what may help, in words and to be tried; `tried`: what a trial gave.
    `position`: place of the block in the order of the network.
    """

    layer: str | None
    op: str
    nodes: tuple[str, ...]
    tensor: str
    name: str
    types: LayerTypes
    alone_db: float
    own_db: float
    accumulated_db: float | None
    weights_db: float | None
    activations_db: float
    at_int16_db: float
    clipped_share: float
    effect_db: float | None
    cause: Cause | None
    why: str
    remedy: str
    position: int
    block: ComparisonBlock
    advice: tuple[Advice, ...] = ()
    tried: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the record for JSON. A figure that is infinite or not a number gives null, as JSON has neither.

        There `tensor` is the source name, and `remedy` is what a trial gave.
        """
        keys = [k for k in self.__dataclass_fields__ if k not in ("block", "types", "name", "advice", "tried", "remedy")]
        return {**{k: _finite(getattr(self, k)) for k in keys}, "remedy": self.tried, "tensor": self.name, **self.types.as_json()}


def _finite(value: Any) -> Any:
    """Return a value for JSON: None for a float that is not finite, a list for a tuple."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return list(value) if is_tuple(value) else value


HELPS_DB = 3.0
FINE_GAIN_DB = 10.0
KEEPS_DB = 0.5
LESS_TIME = 0.75
LOST_DB = 6.0
