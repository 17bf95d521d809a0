#!/usr/bin/env python3
"""Inject one fault each into copies of real networks, and check that the error report's first line names layer and cause.

    `python bench/inject_faults.py zoo [--hw edge16] [--seed 0]`.

Faults are a range 20 times too wide, a range clipped at the 90th percentile, and one layer's weights at 3 bits.
Further faults are a mask that sets a scale, and a branch that calibration did not see.
The networks are those of scripts/fetch_zoo.py that are there, fed with crops of the zoo's photographs.
With `--follow` faults of ranges and weights are also built from a parameters file.
The remedy that this build names is followed, by a second build. Its dB must be within 2 of what the remedy promises.
Exit code 1 where fewer than 9 of 10 are named, or fewer than 9 of 10 promises are reached.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image

from quant.calibrate import calibrate
from quant.file import Parameters, write_parameters
from quant.fit_sample import Sample
from quant.observe import Range
from quant.parameters import WeightQuant
from quant.repair.choices import LayerParameters, Quantization
from quant.repair.file import Repair
from quant.structural_ranges import adjust_ranges
from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.compiler import select_model
from toolchain.frontend import load_model
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.isa import Machine, load_machine
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.passes.decompose import decompose_model
from toolchain.repair.network import Network
from toolchain.report.error_report import ErrorReport, concat_parts, error_report, network_of
from toolchain.report.findings import AdviceContext, LayerError
from toolchain.report.gate import Gate

Array = NDArray[np.float32]
SAMPLES, JUDGED = 16, 4
MASK = -2000.0
PROMISE_DB, CEILING_DB = 2.0, 60.0
_ADVICE = re.compile(
    r"(?s)^(?:output|part) (?P<output>[^:[]+).*tried on \d+ samples?: (?P<advice>.+) \((?P<after>[-\d.]+|exact)(?: dB)? for "
)
_RANGE = re.compile(r"low: (\S+), high: (\S+) for (\S+) in the file")
_OF_RANGES = ("clipped tail", "range wider than its values", "range dominated by few values")


@dataclass(frozen=True)
class Subject:
    """A network with data: `samples` calibrate, `others` judge."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    samples: Sequence[Sample]
    others: Sequence[Sample]


@dataclass(frozen=True)
class InjectedFault:
    """An injected fault.

    `layers`, `causes`: any of which the first line may name.
    """

    fault: str
    layers: frozenset[str]
    causes: tuple[str, ...]
    quantization: Quantization
    network: Network


Fault = Callable[[Subject, Machine, np.random.Generator], InjectedFault]


def calibrate_subject(subject: Subject, machine: Machine) -> tuple[Network, dict[str, Range | Quant]]:
    """Return the network on a machine, and its calibrated ranges by tensor."""
    model = load_model(subject.path, subject.shapes)
    model = decompose_model(model, machine.chip)
    network = Network(model, select_model(model, machine), machine)
    tensors = sorted({tensor for tensor, _ in network.origins.values()})
    observed_ranges = calibrate(
        model.proto,
        subject.samples,
        tensors,
        numerics=machine.chip.numerics,
        computed_by=model,
        decomposition=model.decomposition,
    )
    return network, dict(adjust_ranges(model.proto, observed_ranges, model.decomposition).ranges)


def layers(network: Network) -> list[Node]:
    """Return the convolutions in the middle half of the network."""
    convolutions = [n for n in network.graph.nodes if isinstance(n.op, Convolution) and n.sources]
    return convolutions[len(convolutions) // 4 : max(3 * len(convolutions) // 4, len(convolutions) // 4 + 1)]


def drawn(network: Network, rng: np.random.Generator) -> Node:
    """Return one of `layers` at random."""
    convolutions = layers(network)
    return convolutions[int(rng.integers(len(convolutions)))]


def get_output_tensor(network: Network, node: Node) -> str:
    """Return the model's tensor that the first output of a node is."""
    return network.origins[node.outputs[0]][0]


def wide(subject: Subject, machine: Machine, rng: np.random.Generator) -> InjectedFault:
    """Widen the range of a layer, or of the function after it where that ends the layer's codes whatever the range is."""
    network, ranges = calibrate_subject(subject, machine)
    node, readers = drawn(network, rng), network.graph.consumers()
    while True:
        if node.outputs[0] not in network.origins:  # the host's, whatever is in front of it tells it no more
            node = drawn(network, rng)
        tensor = get_output_tensor(network, node)
        tensor_range = ranges[tensor]
        assert isinstance(tensor_range, Range)
        spoiled = Quantization({**ranges, tensor: Range(20 * tensor_range.low, 20 * tensor_range.high)})
        if _scale(network, spoiled, node) > 10 * _scale(network, Quantization(ranges), node):
            return InjectedFault("a range 20 times too wide", frozenset({node.name}), _OF_RANGES[1:2], spoiled, network)
        node = readers[node.outputs[0]][0]


def _scale(network: Network, quantization: Quantization, node: Node) -> float:
    """Return the scale of a node's output under a quantization."""
    quant = network.integer(quantization).types[node.outputs[0]].quant
    assert quant is not None
    return quant.scale


class _Tenth:
    """An observer: the range that leaves out a tenth of the values that are not zero, widened to 0."""

    def __init__(self) -> None:
        self._values: list[Array] = []

    def update(self, x: Array) -> None:
        self._values.append(x[x != 0].ravel())

    def range(self) -> Range:
        values = np.concatenate(self._values)
        return Range(float(min(np.quantile(values, 0.05), 0)), float(max(np.quantile(values, 0.95), 0)))


def clip_range(subject: Subject, machine: Machine, rng: np.random.Generator) -> InjectedFault:
    """Clip the range of a layer at the 5th and 95th percentile of its values that are not zero."""
    network, ranges = calibrate_subject(subject, machine)
    node = drawn(network, rng)
    tensor = get_output_tensor(network, node)
    from quant.calibrate import observe

    tenth = _Tenth()
    observe(
        network.model.proto,
        subject.samples,
        {tensor: tenth},
        computed_by=network.model,
        decomposition=network.model.decomposition,
    )
    ranges[tensor] = tenth.range()
    return InjectedFault("clipped at the 90th percentile", frozenset({node.name}), _OF_RANGES[:1], Quantization(ranges), network)


def three_bits(subject: Subject, machine: Machine, rng: np.random.Generator) -> InjectedFault:
    """Round the weights of a layer to 3 bits."""
    network, ranges = calibrate_subject(subject, machine)
    node = drawn(network, rng)
    weights = network.graph.constants[node.inputs[1]].astype(np.float64)
    peaks = np.abs(weights).reshape(len(weights), -1).max(1)
    scales = np.where(peaks > 0, peaks, 1.0) / 3
    codes = np.rint(weights / scales.reshape(-1, 1, 1, 1)).astype(np.int8)
    quantization = Quantization(ranges, layers={node.name: LayerParameters(WeightQuant(codes, scales, 0))})
    return InjectedFault("weights at 3 bits", frozenset({node.name}), ("weight rounding",), quantization, network)


def mask_maximum(subject: Subject, machine: Machine, rng: np.random.Generator) -> InjectedFault:
    """Add a constant mask in front of a maximum over more than what it masks: float hardly sees it."""
    proto = onnx.load(subject.path)
    target = _maskable(proto, rng)
    shape = load_model(subject.path, subject.shapes).types[target].shape
    mask = np.zeros(shape, np.float32)
    mask[..., :1] = MASK
    proto.graph.initializer.append(numpy_helper.from_array(mask, "planted.mask"))
    for node in proto.graph.node:
        node.input[:] = ["planted.sum" if n == target else n for n in node.input]
    at = 1 + next(i for i, n in enumerate(proto.graph.node) if target in n.output)
    added = helper.make_node("Add", [target, "planted.mask"], ["planted.sum"], name="planted")
    nodes = [*proto.graph.node[:at], added, *proto.graph.node[at:]]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(proto, Path(folder) / "masked.onnx")
        network, ranges = calibrate_subject(replace(subject, path=Path(folder) / "masked.onnx"), machine)
        model = replace(network.model, source=None)  # its file is gone by the time it is judged
    network = replace(network, model=model)
    return InjectedFault("a mask that sets a scale", frozenset({"planted"}), _OF_RANGES[2:], Quantization(ranges), network)


def _maskable(proto: onnx.ModelProto, rng: np.random.Generator) -> str:
    """Return a tensor that only a MaxPool without padding reads, at random. End the program where there is none."""
    candidates = []
    for node in proto.graph.node:
        numbers = {a.name: list(a.ints) for a in node.attribute}
        if node.op_type != "MaxPool" or numbers["kernel_shape"][1] < 2 or any(numbers.get("pads", ())):
            continue
        if sum(node.input[0] in n.input for n in proto.graph.node) == 1:
            candidates.append(node.input[0])
    if not candidates:
        raise SystemExit("no MaxPool to put a mask in front of")
    return candidates[int(rng.integers(len(candidates)))]


def narrow_branch_ranges(subject: Subject, machine: Machine, rng: np.random.Generator) -> InjectedFault:
    """Narrow the ranges of up to three layers in a row to a twentieth, as if calibration had not woken their branch."""
    network, ranges = calibrate_subject(subject, machine)
    branch = _branch(network.graph, drawn(network, rng))
    for node in branch:
        tensor_range = ranges[get_output_tensor(network, node)]
        assert isinstance(tensor_range, Range)
        ranges[get_output_tensor(network, node)] = Range(tensor_range.low / 20, tensor_range.high / 20)
    names = frozenset(n.name for n in branch)
    return InjectedFault("a branch that calibration did not wake", names, _OF_RANGES[:2], Quantization(ranges), network)


def _branch(graph: Graph, node: Node) -> list[Node]:
    """Return the node and up to two convolutions that follow it, each the only reader of the one before."""
    branch, consumers = [node], graph.consumers()
    while len(branch) < 3 and graph.read_once(branch[-1].outputs[0], consumers):
        (reader,) = consumers[branch[-1].outputs[0]]
        if not isinstance(reader.op, Convolution):
            break
        branch.append(reader)
    return branch


FAULTS: Mapping[str, Fault] = {
    "wide": wide, "clipped": clip_range, "three bits": three_bits, "mask": mask_maximum, "uncalibrated": narrow_branch_ranges
}  # fmt: skip


def report_of(planted: InjectedFault, samples: Iterable[Sample]) -> ErrorReport:
    """Return the error report of a network with its fault on these samples."""
    network, session = planted.network, planted.network.session(planted.quantization)
    integer = network.integer(planted.quantization)
    parts = concat_parts(network.selection.graph, network.origins)
    measured = network_of(network.model, integer, network.graph, network.origins, parts, planted.quantization.ranges)
    runs = ((s, session.run_detailed(s).codes) for s in samples)
    return error_report(measured, runs, AdviceContext(network.chip, "minmax"))


def is_named(planted: InjectedFault, first: LayerError) -> bool:
    """Return whether the first finding names a layer and a cause of the fault."""
    return first.layer in planted.layers and first.cause in planted.causes


# --- the remedy, followed


@dataclass(frozen=True)
class Promise:
    """A remedy that a build names, with the dB that it promises of the worst part, and those of a build that follows it."""

    advice: str
    promised_db: float
    reached_db: float

    @property
    def is_reached(self) -> bool:
        """True where following the remedy gives no less than it promises, within PROMISE_DB. Beyond 60 dB all is alike."""
        return min(self.reached_db, CEILING_DB) >= min(self.promised_db, CEILING_DB) - PROMISE_DB


def follow(planted: InjectedFault, subject: Subject, hardware: str, folder: Path) -> Promise | None:
    """Build a network with its fault, and again with the remedy that the first build names; None where it names none.

    `folder`: for the data and the parameters file.
    """
    for name, samples in (("data", subject.samples), ("others", subject.others)):
        arrays: dict[str, Any] = {key: np.stack([sample[key] for sample in samples]) for key in subject.samples[0]}
        np.savez(folder / f"{name}.npz", **arrays)
    data, judge = str(folder / "data.npz"), str(folder / "others.npz")
    options = BuildOptions(
        hardware, data, parameters=str(folder / "p.yaml"), shapes=subject.shapes, judge=judge, states=("none",), level=0
    )
    tensors = planted.network.model.by_name(planted.quantization.ranges)
    repair = Repair(planted.quantization, "none")
    write_parameters(folder / "p.yaml", Parameters(tensors, repair=repair))
    failed = build(subject.path, replace(options, gate=Gate(min_sqnr=2 * CEILING_DB)))  # so that remedies are tried
    match = next((m for text in failed.failures if (m := _ADVICE.match(text))), None)
    if match is None:
        return None
    advice, promised = match["advice"], math.inf if match["after"] == "exact" else float(match["after"])
    ranges = {t: Range(float(low), float(high)) for low, high, t in _RANGE.findall(advice)}
    write_parameters(folder / "p.yaml", Parameters({**tensors, **ranges}, repair=repair))
    nodes, types = (tuple(re.findall(rf"{option} (\S+)", advice)) for option in ("--host-node", "--type"))
    followed = build(subject.path, replace(options, host_nodes=nodes, types=types))
    judged = [output for output in followed.figures["outputs"] if output["name"] == match["output"]]
    return Promise(advice, promised, min(_list_levels(judged or followed.figures["outputs"])))


def _list_levels(outputs: Iterable[Mapping[str, Any]]) -> Iterable[float]:
    """Yield the SQNR in dB of each output and of its parts; inf where exact."""
    for output in outputs:
        for level in (output["sqnr_db"], *(part["sqnr_db"] for part in output["parts"])):
            yield math.inf if level is None else level


# --- real networks


def crops(zoo: Path, shape: tuple[int, ...], mean: float, scale: float, rng: np.random.Generator) -> list[Array]:
    """Return squares of photographs, [1, 3, height, width] each, as (pixel - mean) scale."""
    files = sorted(f for f in (zoo / "data").iterdir() if f.suffix in (".png", ".jpg"))
    crop_arrays = []
    for i in range(SAMPLES + JUDGED):
        image = Image.open(files[i % len(files)]).convert("RGB")
        side = int(min(image.size) * rng.uniform(0.5, 1.0))
        crop_left, top = (int(rng.integers(0, n - side + 1)) for n in image.size)
        cut = image.crop((crop_left, top, crop_left + side, top + side)).resize((shape[3], shape[2]))
        x = (np.asarray(cut, np.float32).transpose(2, 0, 1)[None] - mean) * scale
        crop_arrays.append(x.astype(np.float32))
    return crop_arrays


NETWORKS: Mapping[str, tuple[str, tuple[int, ...], float, float]] = {  # input, shape, mean, scale
    "efficientnet_lite0": ("input", (1, 3, 224, 224), 127.0, 1 / 128),
    "ppocrv4_det": ("x", (1, 3, 320, 320), 118.0, 1 / 58),
    "mtcnn_onet": ("x", (1, 3, 48, 48), 127.5, 1 / 128),
    "ddddocr_det_yolox": ("images", (1, 3, 416, 416), 0.0, 1.0),
}
PLANTED = (
    ("efficientnet_lite0", "wide"),
    ("efficientnet_lite0", "clipped"),
    ("efficientnet_lite0", "three bits"),
    ("efficientnet_lite0", "uncalibrated"),
    ("mtcnn_onet", "mask"),
    ("ddddocr_det_yolox", "wide"),
    ("ddddocr_det_yolox", "three bits"),
    ("ddddocr_det_yolox", "clipped"),
    ("mtcnn_onet", "three bits"),
    ("mtcnn_onet", "wide"),
)


def subject_of(zoo: Path, network: str, rng: np.random.Generator) -> Subject:
    name, shape, mean, scale = NETWORKS[network]
    samples = [{name: x} for x in crops(zoo, shape, mean, scale, rng)]
    return Subject(zoo / "models" / f"{network}.onnx", {name: shape}, samples[:SAMPLES], samples[SAMPLES:])


def run(options: argparse.Namespace) -> int:
    """Inject each fault of PLANTED and print whether the report names it; return 1 where too few are named or promises kept,
    else 0."""
    machine, named_count, promises = load_machine(options.hw), 0, list[bool | None]()
    for i, (network, fault) in enumerate(PLANTED):
        rng = np.random.default_rng([options.seed, i])
        subject = subject_of(options.zoo, network, rng)
        planted = FAULTS[fault](subject, machine, rng)
        if options.follow and fault != "mask":
            promises.append(print_promise(planted, subject, options.hw))
        first = report_of(planted, subject.others).findings[0]
        right = is_named(planted, first)
        named_count += right
        print(
            f"{'named ' if right else 'MISSED'} {network}: {planted.fault} in {', '.join(sorted(planted.layers))}; first line: "
            f"{first.layer} ({first.tensor}), {first.cause}, {first.alone_db:.1f} dB alone, {first.effect_db:.1f} dB of outputs"
        )
    print(f"{named_count} of {len(PLANTED)} named")
    outcomes = [reached for reached in promises if reached is not None]
    if outcomes:
        print(f"{sum(outcomes)} of {len(outcomes)} promises reached within {PROMISE_DB:g} dB")
    return 0 if named_count >= 0.9 * len(PLANTED) and sum(outcomes) >= 0.9 * len(outcomes) else 1


def print_promise(planted: InjectedFault, subject: Subject, hardware: str) -> bool | None:
    """Follow the remedy of a planted fault and print how that went. Return whether its promise is reached, None without one."""
    with tempfile.TemporaryDirectory() as folder:
        promise = follow(planted, subject, hardware, Path(folder))
    if promise is None:
        print(f"no remedy is named: {planted.fault}")
        return None
    word = "reached" if promise.is_reached else "MISSED"
    print(f"{word}: {promise.advice}: promised {promise.promised_db:.1f} dB, reached {promise.reached_db:.1f}")
    return promise.is_reached


def main() -> None:
    """Run the command and exit with the code of `run`."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoo", type=Path, help="folder of scripts/fetch_zoo.py")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--follow", action="store_true", help="also follow the remedies and compare what they promise")
    options = parser.parse_args()
    with report_errors():
        sys.exit(run(options))


if __name__ == "__main__":
    main()
