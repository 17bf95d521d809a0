#!/usr/bin/env python3
"""Compares a GPU with the CPU: check_cuda.py [--network NAME] [--machine NAME] [--times]; exit code 1 where they differ.

It checks the environment, every host subgraph of two networks, and a network that runs on the host as a whole. Then it compares
the integer reference on CuPy for the example networks. With --times it also measures calibration and repair. On a machine without
a GPU its CPU half runs: the same comparisons with onnxruntime's CPU provider and a stand-in for CuPy. They show that the
comparisons work, and every such line says that the GPU's is unproved.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "networks"), str(ROOT / "examples" / "decoder")]

from quant.calibrate import calibrate, list_calibrated_tensors  # noqa: E402
from quant.calibration_data import random_data  # noqa: E402
from quant.float_session import open_session  # noqa: E402
from tests.support.device_arrays import DeviceLibrary  # noqa: E402
from toolchain.api import Build, BuildOptions, Session, build  # noqa: E402
from toolchain.codegen import HostSubgraph  # noqa: E402
from toolchain.errors import CompileError  # noqa: E402
from toolchain.foundation.inference import CPU, PROVIDER_OPTIONS, host_providers, run_float_models_on, session_options  # noqa: E402
from toolchain.frontend import load_model, to_graph  # noqa: E402
from toolchain.runtime import cuda_reference, random_feeds  # noqa: E402
from toolchain.runtime.ports import make_host_feeds  # noqa: E402

LARGEST_DISTANCE = 1e-5  # of a tensor's largest value; docs/cuda.md: the order of float32 sums, not TF32
NETWORKS = tuple(sorted(p.name.removesuffix(".graph.onnx") for p in (ROOT / "examples" / "networks").glob("*.graph.onnx")))
CLASSIFIER = ROOT / "examples" / "classifier"
TIMED_SAMPLES = 64  # docs/repair.md: repair begins at 16


@dataclass(frozen=True)
class Hosts:
    """The two sides of every comparison.

    `host`: cuda, or cpu where no provider of a GPU starts.
    `has_cupy`: CuPy finds a GPU; else its stand-in computes.
    """

    host: str
    has_cupy: bool


class Record:
    """Prints a line for each check. `failed`: those that did not hold."""

    def __init__(self) -> None:
        self.failed = 0

    def add(self, what: str, fault: str | None, *, on_gpu: bool, result: str) -> None:
        """Print one check. `fault`: what differs. `on_gpu`: a GPU took part, so that the line proves something of it."""
        self.failed += fault is not None
        verdict = f"FAILED: {fault}" if fault else "ok" if on_gpu else "ok on the CPU; on a GPU UNPROVED"
        print(f"{what}: {result}, {verdict}", flush=True)


def find_hosts() -> Hosts:
    """Print the environment, and return what a GPU takes part in."""
    import onnxruntime

    names = sorted({d.name for d in distributions() if d.name.lower().startswith(("onnxruntime", "cupy"))})
    print(f"packages: {', '.join(names)}; onnxruntime {onnxruntime.__version__}: {onnxruntime.get_available_providers()}")
    reasons = [_find_fault(lambda: host_providers("cuda")), _find_fault(cuda_reference.import_cupy)]
    for what, reason in zip(("host cuda", "backend cuda"), reasons):
        print(f"{what}: starts" if reason is None else reason)
    return Hosts("cpu" if reasons[0] else "cuda", reasons[1] is None)


def _find_fault(check: Callable[[], Any]) -> str | None:
    try:
        check()
    except CompileError as fault:
        return str(fault)
    return None


def network(name: str) -> onnx.ModelProto:
    """An example network with seeded weights."""
    from fill_weights import fill_model  # pyright: ignore[reportMissingImports]

    return fill_model(ROOT / "examples" / "networks" / f"{name}.graph.onnx")


def decoder() -> onnx.ModelProto:
    """Return the decoder of examples/decoder for 200 tokens, without caches."""
    import make_decoder  # pyright: ignore[reportMissingImports]

    return make_decoder.decoder(make_decoder.SEQUENCE, False)


def built_for(model: onnx.ModelProto | Path, machine: str, *host_nodes: str) -> Build:
    """Return a quick build on random inputs."""
    return build(model, BuildOptions(machine, level=0, repair="none", host_nodes=host_nodes))


def check_islands(name: str, built: Build, hosts: Hosts, record: Record) -> None:
    """Run every host subgraph on both hosts, with the inputs that the CPU's run gives it."""
    session = Session(built)
    real = session.run_detailed(random_feeds(session.get_inputs(), seed=1)).real
    islands = [s for s in built.container.segments if isinstance(s, HostSubgraph)]
    worst, fault, on_cpu = 0.0, None, 0
    for island in islands:
        expected, values = (
            opened.run(list(island.outputs), make_host_feeds(opened, island.inputs, real))
            for opened in (open_session(island.model, providers=p) for p in (CPU, host_providers(hosts.host)))
        )
        opened = open_session(island.model, providers=host_providers(hosts.host))
        on_cpu += len(opened.get_nodes_by_provider().get(CPU[0], ())) if hosts.host == "cuda" else 0
        for tensor, a, b in zip(island.outputs, expected, values):
            distance = measure_distance(a, b)
            worst = max(worst, distance)
            fault = f"{tensor} differs by {distance:.2g} of its largest value" if distance > LARGEST_DISTANCE else fault
    record.add(
        f"islands of {name}",
        fault,
        on_gpu=hosts.host == "cuda",
        result=f"{len(islands)}, largest distance {worst:.2g}, {on_cpu} nodes fell back to the CPU",
    )


def measure_distance(expected: np.ndarray, value: np.ndarray) -> float:
    """Return the largest difference as a share of the largest magnitude; inf where shapes, NaN or infinities differ."""
    finite = np.isfinite(expected)
    if expected.shape != value.shape or not np.array_equal(expected[~finite], value[~finite], equal_nan=True):
        return np.inf
    a, b = (v[finite].astype(np.float64) for v in (expected, value))
    return float(np.abs(a - b).max(initial=0) / max(np.abs(a).max(initial=0), np.finfo(np.float32).tiny))


def check_whole_network(hosts: Hosts, record: Record) -> None:
    """Compare a network that runs on the host as a whole with a session of onnxruntime of the same options, bit for bit."""
    import onnxruntime

    built = built_for(CLASSIFIER / "classifier.onnx", "edge16", "*")
    session = Session(built, host=hosts.host)  # type: ignore[arg-type]
    feeds = random_feeds(session.get_inputs(), seed=1)
    run = session.run_detailed(feeds)
    (island,) = built.container.segments
    assert isinstance(island, HostSubgraph)
    options, providers = session_options(optimized=True), host_providers(hosts.host)
    options.use_deterministic_compute = True
    plain = onnxruntime.InferenceSession(
        island.model, options, providers=[(p, dict(PROVIDER_OPTIONS.get(p, {}))) for p in providers]
    )
    differs = [
        name
        for name, value in zip(island.outputs, plain.run(list(island.outputs), make_host_feeds(plain, island.inputs, feeds)))
        if not np.array_equal(np.asarray(value), run.real[name])
    ]
    where = f"{run.segments[0].where}, {len(run.segments[0].on_cpu)} nodes on the CPU"
    fault = f"{differs[0]} differs from onnxruntime's own run" if differs else None
    record.add("classifier wholly on the host", fault, on_gpu=hosts.host == "cuda", result=where)


def check_integers(name: str, machine: str, hosts: Hosts, record: Record) -> None:
    """Compare the backend cuda with the reference, bit for bit."""
    built = built_for(network(name), machine)
    sessions = [Session(built, backend=backend) for backend in ("reference", "cuda")]
    feeds = random_feeds(sessions[0].get_inputs(), seed=2)
    runs, seconds = [], []
    for session in sessions:
        session.run_detailed(feeds)  # what is made once
        start_s = time.perf_counter()
        runs.append(session.run_detailed(feeds))
        seconds.append(time.perf_counter() - start_s)
    expected, run = runs
    differs = [n for n, v in expected.outputs.items() if not np.array_equal(v, run.outputs[n], equal_nan=True)]
    on_cpu = sum(len(s.on_cpu) for s in run.segments)
    result = f"reference {seconds[0] * 1e3:.1f} ms, cuda {seconds[1] * 1e3:.1f} ms, {on_cpu} nodes on the CPU"
    fault = f"output {differs[0]} differs from the reference" if differs else None
    record.add(f"integers of {name} on {machine}", fault, on_gpu=hosts.has_cupy, result=result)


def print_times(hosts: Hosts) -> None:
    """Print wall seconds of calibration and repair on the CPU and on the GPU."""
    model, options = load_model(network("mobilenet_v2_224")), BuildOptions("edge16", str(CLASSIFIER / "calib.npz"))
    inputs = {name: model.types[name] for name in to_graph(model).inputs}
    for host in dict.fromkeys(("cpu", hosts.host)):
        with run_float_models_on(host):
            start_s = time.perf_counter()
            calibrate(model.proto, random_data(inputs), list_calibrated_tensors(model.proto, model.types), observer="minmax")
            print(f"calibration of mobilenet_v2_224 on {host}: {time.perf_counter() - start_s:.2f} s")
        start_s = time.perf_counter()
        build(CLASSIFIER / "classifier.onnx", replace(options, samples=TIMED_SAMPLES, repair="fast", host=host))
        print(f"build of the classifier with repair on {host}: {time.perf_counter() - start_s:.2f} s")
    if hosts.host == "cpu":
        print("times on a GPU: UNPROVED")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks with `arguments` (None: the process's); return 1 where one failed, else 0."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", action="append", choices=NETWORKS, help="whose integers are compared (default: all)")
    parser.add_argument("--machine", action="append", help="for the integers (default: edge16 and transformer64)")
    parser.add_argument("--times", action="store_true", help="also measure calibration and repair")
    parsed = parser.parse_args(arguments)
    record = Record()
    hosts = find_hosts()
    if not hosts.has_cupy:
        cuda_reference.import_cupy = DeviceLibrary  # type: ignore[assignment]
    for name, model in (("the decoder", decoder()), ("bert_tiny", network("bert_tiny_relu_l2h128_s128"))):
        check_islands(name, built_for(model, "nvdla_small"), hosts, record)
    check_whole_network(hosts, record)
    for name in parsed.network or NETWORKS:
        for machine in parsed.machine or ("edge16", "transformer64"):
            check_integers(name, machine, hosts, record)
    if parsed.times:
        print_times(hosts)
    proved = {"onnxruntime's provider": hosts.host == "cuda", "CuPy": hosts.has_cupy}
    unproved = [what for what, is_proved in proved.items() if not is_proved]
    print(f"check_cuda: {record.failed} checks failed" + (f"; UNPROVED on a GPU: {', '.join(unproved)}" if unproved else ""))
    return 1 if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
