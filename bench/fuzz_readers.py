#!/usr/bin/env python3
"""Feed damaged files, options and users' Python to the commands and check that each is taken or refused in a sentence.

    `python bench/fuzz_readers.py [COUNT] [--seed N] [--kind KIND ...] [--keep DIR] [--replay INDEX]`.

Real files of every kind that the commands read are damaged (bench/corrupt_files.py).
Options and Python files are drawn (bench/drawn_lines.py), and models of one odd operator (bench/drawn_models.py).
Each is given to the command itself, in its own process with limits.
A case is wrong when it ends with a traceback or another exit code than 0 or 2.
For options 1 and 3 are allowed too, which the commands document.
A case is also wrong when it takes more than 20 CPU seconds, or is refused only after a gigabyte of memory.
It is wrong when it is refused and leaves the output changed or a file behind, or prints nothing.
Texts of stages are refused in no words of Python's or numpy's.
Exit code 0: no case was wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))

import corrupt_files
import drawn_lines
import drawn_models
import numpy as np
import onnx
import plan_memory
from onnx import numpy_helper, parser
from PIL import Image

from toolchain import cli, reference
from toolchain.codegen import entries_to_bytes, read_container

COMMAND_MODULES = tuple(f"toolchain.cli.{name}" for name in ("build", "dis", "hw", "sim"))
LOADED = ("onnxruntime", "toolchain.api", "toolchain.frontend.model", *COMMAND_MODULES)
STAGES = ("01-compose", "02-select", "03-clamps", "04-quantize", "05-fuse")
FOREIGN_WORDS = re.compile(  # names of exceptions, and what Python and numpy say of values that do not fit
    r"\b[A-Z][a-z]+Error\b|object is not|not supported between|could not be broadcast|invalid literal|index out of range"
    r"|positional argument|keyword argument|has no attribute|cannot reshape array|recursion|does not expect it"
)
CPU_S = 20
MEMORY_BYTES = 1 << 30  # resident, of a refused case
ADDRESS_BYTES = 6 << 30  # no case may ask for more
OLD = b"the old contents\n"
CONV = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y) '
    "{ a = Conv<pads=[1,1,1,1]>(x, w) b = MeanVarianceNormalization<axes=[1]>(a) c = Sigmoid(b) y = Relu(c) }"
)
MIXED = (
    '<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[1,8] x) => (float[1,2,4] y, float[1,4] z) '
    "<float[8,8] w = {0}> { a = MatMul(x, v) b = local.act(a) s = Constant<value = int64[3] {1, 2, 4}>() y = Reshape(b, s) "
    "i = Constant<value = int64[4] {0, 2, 4, 6}>() z = Gather<axis=1>(b, i) } "
    '<domain: "local", opset_import: ["" : 17]> act (t) => (u) { h = HardSigmoid(t) u = Mul(t, h) }'
)
PARAMETERS = 'version: 1\ntensors:\n  "x": {low: -3.0, high: 3.0}\n  "a": {scale: 0.05, zero_point: 3}\n' + "".join(
    f'  "{n}": {{low: 0.0, high: 1.0}}\n' for n in "bcy"
)
PREPROCESS = "mean: [1.0, 2.0, 3.0]\nstd: [1.0, 2.0, 3.0]\nfit: crop\nresample: bilinear\n"
BUFFERS = "id,lower,upper,size,alignment\n" + "".join(f"b{i},{i},{i + 3},{64 * (i % 5 + 1)},16\n" for i in range(40))


ENCODED = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "max": 3.0, "min": -3.0, "offset": -128, "scale": 0.0234}
LISTED = {"bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR", "is_sym": False, "offset": [-128], "scale": [0.0234]}
ENCODINGS = [
    {"version": "0.6.1", "activation_encodings": {n: [ENCODED] for n in "xabcy"}, "param_encodings": {"w": [ENCODED]}},
    {"version": "1.0.0", "activation_encodings": [{"name": n, **LISTED} for n in "xabcy"], "param_encodings": []},
]
FEED = "import numpy as np\ndef f():\n    yield np.ones((1, 3, 8, 8), np.float32)\n"
GOOD = tuple(f"good.{suffix}" for suffix in ("onnx", "npu", "npz", "npy", "yaml", "sched", "txt", "json"))


@dataclass(frozen=True)
class Kind:
    """A kind of case: one of `originals` is damaged by `mutate` and written to `name` in the case's folder.

    `lines`: commands, one of which is run; OUT is the output.
    `extra_files`: further files of the folder, by name.
    `draw`: gives the command's words instead of `lines`.
    `codes`: exit codes that are no fault.
    `forbidden`: pattern that no refusal may contain; None: any text will do, as where a user's own words are quoted.
    """

    originals: Sequence[bytes]
    mutate: Callable[[random.Random, bytes], bytes]
    name: str
    lines: Sequence[str]
    extra_files: tuple[tuple[str, bytes], ...] = ()
    draw: Callable[[random.Random], Sequence[str]] | None = None
    codes: tuple[int, ...] = (0, 2)
    forbidden: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Case:
    """A case: the words of its command, and the damaged file's bytes."""

    kind: str
    words: Sequence[str]
    data: bytes

    @property
    def line(self) -> str:
        """The command as a shell reads it."""
        return shlex.join(self.words).encode(errors="backslashreplace").decode()


def main() -> int:
    """Run the cases and print the wrong ones and the counts; return 0 where none was wrong, else 1."""
    args = _options()
    for name in LOADED:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        kinds = _kinds(args.kind)
        gc.freeze()
        wrong, codes, by_kind = 0, Counter[str](), Counter[str]()
        for index in range(args.count) if args.replay is None else [args.replay]:
            case = _case(kinds, random.Random(f"{args.seed}/{index}"))
            code, fault, output = _run(kinds[case.kind], case)
            codes["taken" if code == 0 else "refused"] += 1
            by_kind[case.kind] += 1
            if fault is not None:
                wrong += 1
                print(f"case {index} ({case.kind}): {case.line}: {fault}\n{output[-3000:]}", flush=True)
                if args.keep is not None:
                    (args.keep / f"{args.seed}-{index}-{Path(kinds[case.kind].name).name}").write_bytes(case.data)
            elif args.replay is not None:
                print(f"{case.line}: exit code {code}\n{output}")
    print(f"{args.count if args.replay is None else 1} cases, seed {args.seed}: {wrong} wrong; {dict(sorted(codes.items()))}")
    print(", ".join(f"{kind} {number}" for kind, number in sorted(by_kind.items())))
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    """Return the options of the command line; the directory of --keep is created."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("count", type=int, nargs="?", default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--kind", nargs="+", help="only of these kinds")
    options.add_argument("--keep", type=Path, help="a directory for the files of wrong cases")
    options.add_argument("--replay", type=int, metavar="INDEX", help="only this case, with what it printed")
    args = options.parse_args()
    if args.keep is not None:
        args.keep = args.keep.resolve()
        args.keep.mkdir(parents=True, exist_ok=True)
    return args


# --- the files that are damaged


def _kinds(names: Sequence[str] | None) -> dict[str, Kind]:
    """Build sound files in the current directory and return the kinds of these names, all for None."""
    Path("good.onnx").write_bytes(_model(CONV, "w", (4, 3, 3, 3)))
    _arrays()
    _child(["npu-build", "good.onnx", "--hw", "edge16", "--calib", "good.npz", "-o", "good.npu"])
    _child(["npu-dis", "good.npu", "-o", "good.txt"])
    _child(["npu-build", "good.onnx", "--hw", "edge16", "-o", "s.npu", "--dump-schedule", "good.sched", "--json", "good.json"])
    Path("good.yaml").write_text(PARAMETERS)
    _child(["npu-build", "good.onnx", "--hw", "ws8_pow2", "--calib", "good.npz", "-o", "pow2.npu"])
    _child(["npu-build", "good.onnx", "--hw", "edge16", "--calib", "good.npz", "-O0", "-o", "plain.npu"])
    _child(["npu-build", "good.onnx", "--hw", "edge16", "-o", "s.npu", "--dump-after", "all", "--repair", "none"])
    models = [Path("good.onnx").read_bytes(), _model(MIXED, "v", (8, 8)), _examples()]
    shipped = files("hw_configs")
    machines = [f.read_bytes() for f in shipped.iterdir() if f.name.endswith(".yaml")]
    tables = {f.name: f.read_bytes() for f in shipped.joinpath("isa").iterdir() if f.name.endswith(".yaml")}
    edge16 = shipped.joinpath("edge16.yaml").read_text().replace("isa/descriptors1024.yaml", "table.yaml").encode()
    ethos = shipped.joinpath("ethos_u55_256.yaml").read_text().replace("isa/registers64.yaml", "table.yaml").encode()
    programs = [Path(f"{n}.npu").read_bytes() for n in ("good", "pow2")]
    build = "npu-build good.onnx --hw edge16 -o OUT"
    calibrate = f"{build} --calib"
    kinds = {
        "onnx": Kind(models, corrupt_files.model, "bad.onnx", ["npu-build bad.onnx --hw edge16 -o OUT"]),
        "operators": Kind([b""], drawn_models.model, "bad.onnx", ["npu-build bad.onnx --hw edge16 -o OUT"]),
        "machine": Kind(
            machines, corrupt_files.yaml_text, "bad.yaml", ["npu-hw check bad.yaml", "npu-build good.onnx --hw bad.yaml -o OUT"]
        ),
        "descriptors": Kind(
            [tables["descriptors1024.yaml"]],
            corrupt_files.yaml_text,
            "table.yaml",
            ["npu-hw check m.yaml"],
            (("m.yaml", edge16),),
        ),
        "registers": Kind(
            [tables["registers64.yaml"]], corrupt_files.yaml_text, "table.yaml", ["npu-hw check m.yaml"], (("m.yaml", ethos),)
        ),
        "parameters": Kind([PARAMETERS.encode()], corrupt_files.yaml_text, "bad.yaml", [f"{build} --quant bad.yaml"]),
        "npz": Kind(
            [Path("good.npz").read_bytes(), Path("packed.npz").read_bytes()],
            corrupt_files.arrays,
            "bad.npz",
            ["npu-sim good.npu --output OUT --input bad.npz", f"{calibrate} bad.npz"],
        ),
        "npy": Kind(
            [Path("good.npy").read_bytes()], corrupt_files.array, "d/bad.npy", [f"{calibrate} d", f"{calibrate} d/bad.npy"]
        ),
        "image": Kind(
            _pictures(), corrupt_files.binary, "d/bad.png", [f"{calibrate} d"], (("d/preprocess.yaml", PREPROCESS.encode()),)
        ),
        "preprocess": Kind(
            [PREPROCESS.encode()],
            corrupt_files.yaml_text,
            "d/preprocess.yaml",
            [f"{calibrate} d"],
            (("d/a.png", _pictures()[0]),),
        ),
        "npu": Kind(
            programs,
            corrupt_files.program,
            "bad.npu",
            ["npu-sim bad.npu --output OUT", "npu-dis bad.npu -o OUT", "reference bad.npu --output OUT"],
        ),
        "entries": Kind(
            [entries_to_bytes({n: replace(read_container(f"{n}.npu"), name="m") for n in ("good", "plain")})],
            corrupt_files.program,
            "bad.npu",
            ["npu-sim bad.npu --entry plain --output OUT", "npu-dis bad.npu --entry plain -o OUT"],
        ),
        "listing": Kind(
            [Path("good.txt").read_bytes()], corrupt_files.text, "bad.txt", ["npu-dis good.npu --assemble bad.txt -o OUT"]
        ),
        "buffers": Kind(
            [BUFFERS.encode()], corrupt_files.text, "bad.csv", ["plan_memory bad.csv --capacity 4096 --plot OUT"], codes=(0, 1, 2)
        ),
        "encodings": Kind(
            [json.dumps(e).encode() for e in ENCODINGS],
            corrupt_files.json_text,
            "bad.encodings",
            [f"{build} --quant bad.encodings"],
        ),
        "schedule": Kind([Path("good.sched").read_bytes()], corrupt_files.text, "bad.sched", [f"{build} --schedule bad.sched"]),
        "stage": Kind(
            [*(Path(f"dumps/{n}.txt").read_bytes() for n in STAGES), Path("good.sched").read_bytes()],
            corrupt_files.stage_text,
            "bad.txt",
            [
                f"{build} --start-from bad.txt",
                *(f"{calibrate} feed.py:f --start-from bad.txt{o}" for o in ("", " --repair fast")),
            ],
            (("constants.npz", Path("dumps/constants.npz").read_bytes()), ("feed.py", FEED.encode())),
            forbidden=FOREIGN_WORDS,
        ),
        "python": Kind(
            [b""],
            drawn_lines.python_file,
            "feed.py",
            [f"{calibrate} feed.py:f", f"{calibrate} good.npz --judge feed.py:f", f"{calibrate} good.npz --eval feed.py:f"],
            codes=(0, 2, 3),
        ),
        "options": Kind([FEED.encode()], lambda _, data: data, "feed.py", [], draw=_drawing_options(), codes=(0, 1, 2, 3)),
    }
    return {name: kind for name, kind in kinds.items() if names is None or name in names}


def _drawing_options() -> Callable[[random.Random], Sequence[str]]:
    """Return a function that draws a command line."""
    commands = drawn_lines.options()
    return lambda rng: drawn_lines.command_line(rng, commands)


def _model(text: str, weight: str, shape: tuple[int, ...]) -> bytes:
    """Return a model of onnx.parser's text with random weights."""
    proto = parser.parse_model(text)
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, weight))
    return proto.SerializeToString()


def _examples() -> bytes:
    """Return a model whose weights are typed in fields instead of raw bytes."""
    pooled = CONV.replace("MeanVarianceNormalization<axes=[1]>(a)", "MaxPool<kernel_shape=[1,1]>(a)")
    proto = onnx.load_from_string(_model(pooled, "w", (4, 3, 3, 3)))
    weight = proto.graph.initializer[0]
    values = numpy_helper.to_array(weight)
    weight.ClearField("raw_data")
    weight.float_data.extend(values.reshape(-1).tolist())
    return proto.SerializeToString()


def _arrays() -> None:
    """Write good.npz, packed.npz and good.npy."""
    x = np.random.default_rng(2).normal(size=(2, 3, 8, 8)).astype(np.float32)
    np.savez("good.npz", x=x[:1])
    np.savez_compressed("packed.npz", x=x[:1], labels=np.zeros(2, np.uint8))
    np.save("good.npy", x[:1])


def _pictures() -> list[bytes]:
    """Return the bytes of one picture in four formats."""
    pixels = np.random.default_rng(3).integers(0, 256, (12, 9, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    for name in ("p.png", "p.jpg", "p.bmp"):
        image.save(name)
    image.convert("P").save("palette.png")
    return [Path(name).read_bytes() for name in ("p.png", "p.jpg", "p.bmp", "palette.png")]


# --- one case


def _case(kinds: dict[str, Kind], rng: random.Random) -> Case:
    """Return a random case of one of the kinds."""
    name = rng.choice(list(kinds))
    kind = kinds[name]
    words = kind.draw(rng) if kind.draw is not None else rng.choice(kind.lines).split(" ")
    return Case(name, words, kind.mutate(rng, rng.choice(kind.originals)))


def _run(kind: Kind, case: Case) -> tuple[int, str | None, str]:
    """Run a case in a folder of its own and return its exit code, its fault or None, and what it printed."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder)
        for name, data in ((kind.name, case.data), *kind.extra_files, ("OUT", OLD)):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(data)
        for name in GOOD:
            shutil.copy(name, place / name)
        before = sorted(place.rglob("*"))
        code, peak_bytes, output = _child(case.words, place)
        fault = _fault(code, kind.codes, peak_bytes, output)
        if fault is None and code == 2 and kind.forbidden is not None and (words := kind.forbidden.search(output)):
            fault = f"is refused in words of Python: {words.group()}"
        if fault is None and code == 2:
            if (place / "OUT").read_bytes() != OLD:
                fault = "is refused, and the output is changed"
            elif sorted(place.rglob("*")) != before:
                fault = "is refused, and leaves files behind"
    return code, fault, output


def _fault(code: int, allowed: Sequence[int], peak_bytes: int, output: str) -> str | None:
    """Return what is wrong with the end of a command, or None.

    `allowed`: exit codes that are no fault.
    """
    if code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return f"takes more than {CPU_S} CPU s"
    if "Traceback" in output or code not in allowed:
        return f"ends with exit code {code}"
    if code == 2 and (not output.strip() or "out of memory" in output):
        return "is refused for want of memory" if output.strip() else "is refused without a word"
    if code == 2 and peak_bytes > MEMORY_BYTES:
        return f"is refused after {peak_bytes >> 20} MiB"
    if len(output) > 200_000 or not all(c.isprintable() or c == "\n" for c in output.partition("\n{")[0]):
        return f"prints {len(output):,} characters, or some that are none"
    return None


def _child(arguments: Sequence[str], place: Path = Path(".")) -> tuple[int, int, str]:
    """Run a command in a process of its own: return its exit code or minus the signal, its peak memory in bytes, and its
    output."""
    with tempfile.TemporaryFile() as printed:
        process = os.fork()
        if not process:
            _become(arguments, place, printed.fileno())
        _, status, usage = os.wait4(process, 0)
        printed.seek(0)
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10, printed.read().decode(errors="replace")


COMMANDS: dict[str, Callable[[], Any]] = {
    **{f"npu-{name}": partial(cli.run_command, name) for name in ("build", "sim", "dis", "hw")},
    "reference": reference.main,
    "plan_memory": lambda: sys.exit(plan_memory.main()),
}


def _become(arguments: Sequence[str], place: Path, printed: int) -> None:
    """Runs the command and ends the process."""
    code: Any = 70
    try:
        os.chdir(place)
        for stream in (1, 2):
            os.dup2(printed, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 2))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        signal.alarm(10 * CPU_S)
        sys.argv = list(arguments)
        COMMANDS[arguments[0]]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a user's Python may have closed them
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
