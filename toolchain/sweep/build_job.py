"""Build one point of a sweep in this process, and return what came of it as a `Result`.

The build server calls it in a child process (toolchain.sweep.build_server). Limits of time and memory are enforced there.
By option of npu-build, KEY_BY_OPTION has the key of a sweep's file that stands for it, so that refusals name that too.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from toolchain.errors import InternalError, ToolchainError, first_line, format_count, is_out_of_memory
from toolchain.sweep.metrics import Metrics, collect_sweep_metrics
from toolchain.sweep.points import Job
from toolchain.sweep.sweep_file import list_changes

KEY_BY_OPTION = {
    "--plugin": "plugins",
    "--custom-ops": "custom_ops",
    "--calib": "networks.NAME.calib",
    "--quant": "networks.NAME.quant",
    "--shape": "networks.NAME.shapes",
    "--value": "networks.NAME.values",
    "--state": "networks.NAME.states",
    "--type": "networks.NAME.types",
    "--host-node": "networks.NAME.host_nodes",
    "--hw": "machines.NAME.file",
    "--repair": "options.repair",
    "--observer": "options.observer",
    "--samples": "options.samples",
    "--optimize": "options.optimize",
    "--sram-budget": "options.sram_budget",
    "--static-ranges": "options.static_ranges",
}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
Status = Literal["built", "refused", "bug", "time", "memory", "died"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Result:
    """The outcome of one build.

    `status`: `built`; `refused`, for a fault of model or options; `bug`, for one of the toolchain. `time` and `memory` say
    which limit was exceeded. `died`: its process ended without a result.
    `reason`: one line, "" where it is built.
    `metrics`: empty where it is not built.
    `report`: the text that npu-build prints, or the fault.
    `cpu_seconds`: CPU time of the build; the server fills it in.
    """

    status: Status
    reason: str = ""
    metrics: Metrics = field(default_factory=dict[str, float | int | None])
    report: str = ""
    cpu_seconds: float = 0.0


def build_job(job: Job) -> Result:
    """Build a point and return its result. Every exception becomes a result."""
    try:
        return _build(job)
    except Exception as fault:
        if is_out_of_memory(fault):
            return out_of_memory_result(job)
        if isinstance(fault, ToolchainError):
            return Result("refused", tell_keys(first_line(fault)), report=tell_keys(str(fault)))
        kind = "" if isinstance(fault, InternalError) else f"{type(fault).__name__}: "
        return Result("bug", f"{kind}{first_line(fault)}", report=traceback.format_exc())


def out_of_memory_result(job: Job) -> Result:
    """Return the result of a build that needs more memory than its limit, or than there is."""
    limit = "" if job.memory_bytes is None else f" of {format_count(job.memory_bytes, 'byte')} (limits.memory)"
    return Result("memory", f"needs more memory than there is{limit}")


def _build(job: Job) -> Result:
    """Build the point and return its result with the report; it raises what the build raises."""
    from toolchain.api import build
    from toolchain.report.build_text import build_text

    options = build_options(job)
    built = build(job.network["model"], options)
    warnings = [f"WARNING: {warning}" for warning in built.warnings]
    report = "\n\n".join([build_text(built.figures, built.notes, explain=True), *warnings])
    return Result("built", "", collect_sweep_metrics(built.figures, len(built.data)), report)


def build_options(job: Job) -> Any:
    """Load the plug-ins of a point, which its machine may need, and return its BuildOptions.

    Raise CompileError or ConfigError where a plug-in or the changed machine is refused.
    """
    from toolchain.api import BuildOptions
    from toolchain.isa import load_machine
    from toolchain.plugin_loading import load_plugins
    from toolchain.schedule.goals import BALANCED

    load_plugins(job.plugins)
    options, network = dict(job.options), job.network
    default = BALANCED  # as of npu-build
    objective, budget = options.pop("optimize", default.objective), options.pop("sram_budget", None)
    goal = replace(default, objective=objective, sram_bytes=budget)
    return BuildOptions(
        load_machine(job.machine, list_changes(job.changes)),
        calibration=network["calib"],
        parameters=network["quant"],
        shapes={name: tuple(shape) for name, shape in network["shapes"].items()},
        values={name: tuple(values) for name, values in network["values"].items()},
        states=None if network["states"] is None else tuple(network["states"]),
        types=tuple(network["types"]),
        host_nodes=tuple(network["host_nodes"]),
        goal=goal,
        custom_ops=job.custom_ops,
        **options,
    )


def tell_keys(reason: str) -> str:
    """Return a refusal with the keys of the sweep file that stand for the options of npu-build that it names."""
    options = dict.fromkeys(_OPTION.findall(reason))
    keys = [f"{option} is {KEY_BY_OPTION[option]}" for option in options if option in KEY_BY_OPTION]
    others = [option for option in options if option not in KEY_BY_OPTION]
    parts = [f"in the sweep's file {', '.join(keys)}"] if keys else []
    parts += [f"npu-sweep does not take {', '.join(others)}: npu-build does"] if others else []
    return "; ".join([reason, *parts])
