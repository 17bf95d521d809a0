"""Define the types of a build's figures, which are the keys of the JSON report; docs/figures.md is generated from them.

`report.metrics` and `report.accuracy` fill them. `BuildFigures` is one build, `EntriesFigures` one with several sets of input
shapes. `Attribution` holds cycles by unit and cause, some causes split further. A level in dB is null where it is not finite.
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypeAlias

from typing_extensions import TypedDict

Attribution: TypeAlias = dict[str, dict[str, int | dict[str, int]]]


class DramBytes(TypedDict):
    """The least bytes that cross the DRAM port, by what they are."""

    constants: Annotated[int, "Weights and tables."]
    inputs: Annotated[int, "Inputs of the regions."]
    outputs: Annotated[int, "Outputs of the regions."]
    again: Annotated[int, "What must be read or written again, since the memory cannot hold it."]


class RegionBound(TypedDict):
    """The fewest cycles of one region."""

    cycles: Annotated[int, "The fewest cycles."]
    by: Annotated[str, "The unit that needs them, `none`, or `LAYER and what is behind it` where these wait for others."]
    behind: NotRequired[Annotated[str, "That layer; only of a region where waiting is the bound."]]
    uses: Annotated[dict[str, int], "By unit, the cycles that its work takes."]


class Bounds(TypedDict):
    """Bounds that no plan on this machine is below."""

    cycles: Annotated[int, "The fewest cycles."]
    dram_bytes: Annotated[int, "The least bytes of DRAM traffic."]
    dram: Annotated[DramBytes, "The same by kind."]
    regions: Annotated[list[RegionBound], "By region."]


class KeyTrialFigures(TypedDict):
    """The program timed again on the machine with one key changed."""

    key: Annotated[str, "The key, from the top of the machine's file."]
    before: Annotated[int | float | bool | str, "Its value in the file."]
    after: Annotated[int | float | bool | str, "The other value."]
    cycles: Annotated[int, "Cycles of all regions with it."]


class LayerBounds(RegionBound):
    """Bounds of one layer by itself."""

    dram_bytes: Annotated[int, "The least bytes of DRAM traffic."]
    dram: Annotated[DramBytes, "The same by kind."]


class Traffic(TypedDict):
    """Bytes that cross the ports of one memory."""

    read_bytes: Annotated[int, "Bytes read."]
    write_bytes: Annotated[int, "Bytes written."]
    read_burst_bytes: Annotated[int, "Bytes read, each burst in full."]
    write_burst_bytes: Annotated[int, "Bytes written, each burst in full."]


class Energy(TypedDict):
    """Energy in pJ by what takes it."""

    macs: Annotated[float, "Products."]
    on_chip: Annotated[float, "Memories on the chip."]
    dram: Annotated[float, "DRAM."]
    total: Annotated[float, "All three."]


class LayerTypes(TypedDict):
    """Types of codes of a layer."""

    input_types: Annotated[list[str], "Types of the tensors that it reads."]
    output_types: Annotated[list[str], "Types of the tensors that it makes."]
    weight_type: Annotated[str | None, "Type of its weights; null without weights."]


class LayerFigures(LayerTypes):
    """A layer of the program."""

    name: Annotated[str, "Its name."]
    op: Annotated[str, "Its operator on the chip."]
    sources: Annotated[list[str], "Nodes of the model that it stands for."]
    steps_of: Annotated[str | None, "The tensor of all steps, where it is a step of a sequence."]
    engine: Annotated[str, "Its engines, as `conv x2`: the arrays that work for it, else vector engines, else DMA."]
    cycles: Annotated[int, "Cycles of the run that are its own."]
    macs: Annotated[int, "Products."]
    busy_macs: Annotated[int, "Products that its arrays could make while they worked."]
    bound_by: Annotated[str, "The engine of the unit that works longest for it; `none` where none works."]
    segment: Annotated[int, "Index of its segment."]
    operations: Annotated[list[int] | None, "Indices of its first and last operation in the segment's program; null without any."]
    attribution: Annotated[Attribution | None, "By unit, where the layer's cycles went; null without times."]
    traffic: Annotated[dict[str, Traffic], "By memory, the bytes of its operations."]
    program_bytes: Annotated[int, "Bytes of instructions read."]
    energy_pj: Annotated[Energy | None, "Energy; null where the machine names none."]
    bounds: Annotated[LayerBounds, "Bounds of the layer by itself."]


class NodeFigures(LayerTypes):
    """A node of the model or one that the compiler makes, as `--explain` lists it."""

    node: Annotated[str, "Its name."]
    op: Annotated[str, "Its operator."]
    engine: Annotated[str, "Engines of its layer, `host`, or `none` where it is folded away."]
    layer: Annotated[str | None, "The layer that computes it; null without one."]
    cycles: Annotated[int | None, "Cycles of that layer; null on the host, 0 where it is folded away."]
    reason: Annotated[str, "Why it is there, or costs what it does."]
    made_by: Annotated[str, "`model` or `compiler`."]
    steps_of: Annotated[str | None, "As of the layer."]
    segment: Annotated[int | None, "Index of its segment; null without a layer."]
    operations: Annotated[list[int] | None, "Indices of its first and last operation in the segment's program; null without any."]


class BufferUse(TypedDict):
    """The use of a memory on the chip other than the SRAM."""

    memory: Annotated[str, "Its name."]
    peak_bytes: Annotated[int, "Most bytes in use."]
    bound_bytes: Annotated[int, "The least that any placement of these buffers needs."]
    size_bytes: Annotated[int, "Its size."]


class UnusedEngine(TypedDict):
    """An engine that compiled programs do not use."""

    engine: Annotated[str, "Its name."]
    reason: Annotated[str, "Why."]


class HostFigures(TypedDict):
    """The work of the host."""

    islands: Annotated[int, "Host subgraphs."]
    nodes: Annotated[int, "Their nodes."]
    macs: Annotated[int, "Their products."]
    mac_share: Annotated[float, "Their share of all products."]
    crossings: Annotated[int, "Tensors that cross between host and chip, without the model's inputs and outputs."]
    crossing_bytes: Annotated[int, "Bytes of these."]
    seconds: Annotated[float, "Time of all of this by the machine's `host` ([machine.md](machine.md#the-hosts-price))."]


class Fallback(TypedDict):
    """A node on the host."""

    node: Annotated[str, "Its name."]
    op: Annotated[str, "Its operator."]
    reason: Annotated[str, "Why it is not on the chip."]


class SegmentFigures(TypedDict):
    """A segment and what ran it."""

    where: Annotated[str, "A backend of the chip, or a provider of onnxruntime."]
    nodes: Annotated[int, "Its nodes."]
    on_cpu: Annotated[list[str], "Nodes that fell back to the CPU."]


class OutputSlice(TypedDict):
    """A slice of an output that is judged by itself."""

    part: Annotated[str, "The slice, such as `y[:, 0]`."]
    sqnr_db: Annotated[float | None, "SQNR; null where it is not finite, as where the slice is exact."]
    rms: Annotated[float, "Root mean square in float."]


class OutputFigures(TypedDict):
    """An output, or an operand of a Concat, against float."""

    name: Annotated[str, "Its name."]
    sqnr_db: Annotated[float | None, "SQNR over the judged samples; null where it is not finite, as where the output is exact."]
    cosine: Annotated[float | None, "Cosine with float's."]
    exact: Annotated[bool, "Whether it equals float's."]
    varying_sqnr_db: Annotated[float | None, "SQNR of what varies from sample to sample, where most does not."]
    worst_sample_db: Annotated[float | None, "SQNR of the worst sample."]
    standard_error_db: Annotated[
        float | None, "Standard error of `sqnr_db`, by leaving out each sample in turn; null without one."
    ]
    parts: Annotated[list[OutputSlice], "Slices of unlike size."]
    steps_of: Annotated[str | None, "As of a layer."]
    poor: Annotated[bool, "Whether it is called POOR."]


class PartVerdict(TypedDict):
    """A part that is poor, or looks so."""

    part: Annotated[str, "Its name."]
    poor: Annotated[bool, "Whether it is called POOR."]
    why: Annotated[str, "Why, or why not."]


class LayerErrorFigures(LayerTypes):
    """One of the layers that lose most ([accuracy.md](accuracy.md))."""

    layer: Annotated[str | None, "Its node; null for a tensor that enters a region."]
    op: Annotated[str, "Its operator; `host` or `input` for a tensor that enters a region."]
    nodes: Annotated[list[str], "Nodes of the model."]
    tensor: Annotated[str, "Its tensor."]
    alone_db: Annotated[float | None, "SQNR, fed with float's tensors."]
    own_db: Annotated[float | None, "SQNR of the rounding of its tensor."]
    accumulated_db: Annotated[float | None, "SQNR in the network's own run; null also where that was not measured."]
    weights_db: Annotated[float | None, "SQNR of rounded weights; null also without weights or where that was not measured."]
    activations_db: Annotated[float | None, "SQNR of the rest."]
    at_int16_db: Annotated[float | None, "SQNR alone, with 16 bits for 8."]
    clipped_share: Annotated[float | None, "Share of its values outside its codes, 0 to 1."]
    effect_db: Annotated[float | None, "The worst output with this error alone put into float; null also where untried."]
    cause: Annotated[str | None, "The cause; null before a diagnosis."]
    why: Annotated[str, "What was measured of the cause."]
    position: Annotated[int, "Place in the order of the network."]
    remedy: Annotated[str, "What helps, as tried; empty without a trial."]


class Score(TypedDict):
    """The answer of the function of `--eval`."""

    function: Annotated[str, "The function."]
    value: Annotated[float | None, "Its number."]
    passed: Annotated[bool, "Whether that is enough."]


class FastestPlan(TypedDict):
    """The cost of the plan of fewest cycles."""

    cycles: Annotated[int, "Its cycles."]
    dram_bytes: Annotated[int, "Its DRAM traffic."]
    energy_pj: Annotated[float | None, "Its energy; null where the machine names none."]


class LayerGain(TypedDict):
    """The gain of a step of repair at a layer."""

    layer: Annotated[str, "The layer."]
    before: Annotated[float, "Mean squared error over float's mean square before the step."]
    after: Annotated[float, "The same after it."]


class RepairStepFigures(TypedDict):
    """A step of repair."""

    step: Annotated[str, "Its name."]
    kept: Annotated[bool, "Whether it was kept."]
    why: Annotated[str, "Why, or why not."]
    before_db: Annotated[float, "SQNR on held-out samples before it."]
    after_db: Annotated[float | None, "The same after it; null where it changed nothing or the machine cannot express it."]
    notes: Annotated[list[str], "What it says of itself."]
    layers: Annotated[list[LayerGain], "Gains by layer."]


class RepairFigures(TypedDict):
    """The repair of the build ([repair.md](repair.md))."""

    effort: Annotated[str, "`none`, `fast` or `full`."]
    held_out: Annotated[int, "Samples that no step saw."]
    steps: Annotated[list[RepairStepFigures], "Its steps in order."]


class SweepPointFigures(TypedDict):
    """A size of the SRAM."""

    sram_bytes: Annotated[int, "The size."]
    cycles: Annotated[int, "Cycles with it."]
    dram_bytes: Annotated[int, "DRAM traffic with it."]
    least_bytes: Annotated[int, "The least DRAM traffic with it."]
    peak_bytes: Annotated[int, "Most bytes in use."]


class SramCurve(TypedDict):
    """The sweep of `--sram-curve`."""

    own_bytes: Annotated[int, "The size that the machine has."]
    points: Annotated[list[SweepPointFigures], "Sizes, the least first."]


class BuildFigures(TypedDict):
    """The figures of a build, and of each entry of a build of several."""

    name: Annotated[str, "The model's name."]
    machine: Annotated[str, "The machine's name."]
    cycles: Annotated[int, "Cycles of all regions."]
    clock_hz: Annotated[float, "The machine's clock."]
    seconds: Annotated[float, "Cycles over the clock."]
    macs: Annotated[int, "Products on the chip."]
    macs_per_cycle: Annotated[float, "Products a cycle that the used arrays can make."]
    mac_utilization: Annotated[float, "Products over what these arrays could make in all cycles."]
    roofline_cycles: Annotated[int, "The more of the cycles for products alone and for DRAM alone."]
    dram_read_bytes: Annotated[int, "Bytes read from DRAM."]
    dram_write_bytes: Annotated[int, "Bytes written to DRAM."]
    dram_bound_bytes: Annotated[int, "The least bytes of DRAM traffic."]
    bounds: Annotated[Bounds, "Bounds that no plan is below ([bounds.md](bounds.md))."]
    sram_peak_bytes: Annotated[int, "Most SRAM in use."]
    sram_bound_bytes: Annotated[int, "The least SRAM for the buffers of this schedule."]
    sram_size_bytes: Annotated[int, "Size of the SRAM."]
    buffers: Annotated[list[BufferUse], "Other memories on the chip in use."]
    busy_cycles: Annotated[dict[str, int], "By engine, cycles in which it works."]
    attribution: Annotated[Attribution, "By unit, where all cycles went, by cause ([simulator.md](simulator.md))."]
    traffic: Annotated[dict[str, Traffic], "By memory, the bytes that cross its ports."]
    program_bytes: Annotated[int, "Bytes of instructions read."]
    energy_pj: Annotated[Energy | None, "Energy; null where the machine names none."]
    used_arrays: Annotated[list[str], "MAC arrays that work."]
    idle_arrays: Annotated[list[str], "MAC arrays that do not."]
    arrays_overlap: Annotated[float, "Share of array time in which two or more work."]
    unused_engines: Annotated[list[UnusedEngine], "Engines that compiled programs do not use."]
    layers: Annotated[list[LayerFigures], "Layers in the order of the program."]
    host: Annotated[HostFigures, "What runs on the host."]
    fallbacks: Annotated[list[Fallback], "Nodes on the host, with reasons."]
    segments: Annotated[list[SegmentFigures], "Segments in order."]
    warnings: Annotated[list[str], "Warnings of the run; in the JSON file all of the build."]
    nodes: Annotated[list[NodeFigures], "Nodes with engine, cost and reason."]
    outputs: Annotated[list[OutputFigures], "Outputs against float."]
    concats: Annotated[list[OutputFigures], "Operands of Concats at outputs, against float."]
    poor_parts: Annotated[list[PartVerdict], "Parts that are poor, or look so."]
    judged_on: Annotated[str, "Samples: `calibration`, `held out`, `calib`, `judge`, `repeated` of an entry, `random inputs`."]
    judged_samples: Annotated[int, "Samples that were judged."]
    samples_to_judge: Annotated[int | None, "Samples that there are; null where the data do not tell."]
    sample_sqnr_db: Annotated[list[float | None], "By sample, SQNR of the output that suffers most."]
    worst_layers: Annotated[list[LayerErrorFigures], "Layers that lose most."]
    worst_samples: Annotated[int, "Samples on which these were found."]
    score: Annotated[Score | None, "Of `--eval`; null without it."]
    expected_cycles: Annotated[int, "Cycles by the planner's model."]
    fastest: Annotated[FastestPlan | None, "The plan of fewest cycles, where another was taken for its energy."]
    search_steps: Annotated[int, "Candidates that the planner has costed, of all entries; `--search-steps` ends at them."]
    repair: Annotated[RepairFigures | None, "Null where nothing was to repair."]
    near_copies_judged: Annotated[int, "Held-out samples that are nearly a calibration sample."]
    calibration_samples: Annotated[int | None, "Samples of calibration; null for random inputs."]
    key_trials: NotRequired[Annotated[list[KeyTrialFigures], "Only with `--explain`, that of fewest cycles first."]]
    sram_curve: NotRequired[Annotated[SramCurve, "Only with `--sram-curve`."]]
    notes: NotRequired[Annotated[list[str], "Only in the JSON file: what was assumed."]]
    failures: NotRequired[Annotated[list[str], "Only in the JSON file: what the gate found."]]


class EntriesFigures(TypedDict):
    """The figures of a build of several entries."""

    name: Annotated[str, "The model's name."]
    machine: Annotated[str, "The machine's name."]
    entries: Annotated[dict[str, BuildFigures], "By entry, its figures."]
    file_bytes: Annotated[int, "Size of the compiled file."]
    alone_bytes: Annotated[dict[str, int], "By entry, the size of a file with it alone."]
    shared_bytes: Annotated[int, "Bytes that entries have in common."]
    notes: NotRequired[Annotated[list[str], "Only in the JSON file: what was assumed."]]
    warnings: NotRequired[Annotated[list[str], "Only in the JSON file: warnings of all entries."]]
    failures: NotRequired[Annotated[list[str], "Only in the JSON file: what the gate found."]]
