"""Check operators from outside: how they are loaded, selected, stored in compiled files, and refused."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner

from tests.plugins.sources import RMSNORM, break_plugin, source_of
from tests.support.run_in_process import run_script
from toolchain.api import Build, BuildOptions, Session, build
from toolchain.cli.application import application
from toolchain.cli.build import build_command
from toolchain.cli.dis import app as dis_app
from toolchain.cli.hw import app as hw_app
from toolchain.cli.sim import sim_command
from toolchain.errors import CompileError, ProgramError
from toolchain.isa import load_machine
from toolchain.plugin_check.check import machine_with_functions
from toolchain.plugin_loading import GROUP, load_plugin, load_plugins, unload_plugin

MACHINE = RMSNORM.parent / "edge16_rms.yaml"
HEADER = '<ir_version: 8, opset_import: ["" : 17, "my.org" : 1]>'
SCALE = np.linspace(0.5, 1.5, 32, dtype=np.float32)


def norm_model(node: str = "RMSNorm <epsilon = 0.001> (r, s)") -> onnx.ModelProto:
    """Relu, the operator of my.org, Add."""
    values = ", ".join(f"{v:.6f}" for v in SCALE)
    body = f"r = Relu(x) n = my.org.{node} y = Add(n, x)"
    return parser.parse_model(f"{HEADER} g (float[4,8,32] x) => (float[4,8,32] y) <float[32] s = {{{values}}}> {{ {body} }}")


def pool_model() -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER} g (float[1,8,12,10] x) => (float[1,8,6,5] y) {{ p = my.org.MidPool(x) y = Relu(p) }}")


def samples(shape: tuple[int, ...], count: int = 20) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def built(model: onnx.ModelProto, machine: object, plugin: Path, shape: tuple[int, ...]) -> Build:
    return build(model, BuildOptions(machine, calibration=samples(shape), plugins=(str(plugin),)))  # type: ignore[arg-type]


def rms(x: np.ndarray) -> np.ndarray:
    r = np.maximum(x, 0)
    return r / np.sqrt((r * r).mean(-1, keepdims=True) + 0.001) * SCALE + x


@pytest.mark.parametrize("machine", ["transformer64", str(MACHINE)], ids=["shipped", "own"])
def test_rmsnorm_runs_on_the_chip(machine: str) -> None:
    one = built(norm_model(), machine, RMSNORM, (4, 8, 32))
    assert one.container.fallbacks == ()
    sample = samples((4, 8, 32), 21)[-1]
    expected, got = rms(sample["x"]), Session(one).run(None, sample)[0]
    assert 10 * np.log10((expected**2).sum() / ((expected - got) ** 2).sum()) >= 30


def test_rmsnorm_is_the_hosts_where_a_function_is_missing() -> None:
    one = built(norm_model(), "ws8_pow2", RMSNORM, (4, 8, 32))
    (row,) = [row for row in one.figures["nodes"] if row["op"] == "RMSNorm"]
    assert (row["engine"], row["reason"]) == (
        "host",
        "in steps (plug-in rmsnorm), of which Unary: engines.vector.functions has no table",
    )


def test_steps_that_become_one_function_name_their_plugin_too() -> None:
    model = parser.parse_model(f"{HEADER} g (float[2,16] x) => (float[2,16] y) {{ y = my.org.SoftClip <limit = 2.0> (x) }}")
    one = built(model, "ws8_pow2", source_of("soft_clip"), (2, 16))
    assert [reason for _, _, reason in one.container.fallbacks] == [
        "in steps (plug-in soft_clip), of which Unary: engines.vector.functions has no table"
    ]


def test_one_step_of_the_host_takes_all_steps_with_it(tmp_path: Path) -> None:
    """CumSum has no operator of the chip; the function behind it has."""
    running_sum = 'build.add("CumSum", x, np.array(1, np.int64))'
    file = break_plugin("soft_clip", tmp_path, '"Mul", x, self.slope', f'"Mul", {running_sum}, self.slope')
    model = parser.parse_model(f"{HEADER} g (float[2,16] x) => (float[2,16] y) {{ y = my.org.SoftClip <limit = 2.0> (x) }}")
    one = built(model, "edge16", file, (2, 16))
    assert not one.figures["layers"]
    assert {reason for _, _, reason in one.container.fallbacks} == {
        "in steps (plug-in soft_clip), of which CumSum: no operator of the chip computes CumSum"
    }


def test_a_compiled_file_names_the_plugins_that_it_needs(tmp_path: Path) -> None:
    file = source_of("mid_pool")
    loaded = load_plugin(file)
    one = built(pool_model(), machine_with_functions("edge16", loaded, tmp_path), file, (1, 8, 12, 10))
    digest, sample = loaded.digest, samples((1, 8, 12, 10), 1)[0]
    expected = Session(one.data).run(None, sample)[0]
    unload_plugin("mid_pool")
    with pytest.raises(ProgramError) as refusal:
        Session(one.data)
    assert str(refusal.value) == (
        f"model: needs plug-in mid_pool 1.0 (digest {digest[:12]}), which is not loaded; "
        "give it by --plugin FILE.py, or Session(..., plugins=[FILE])"
    )
    other = break_plugin("mid_pool", tmp_path, "least of a window,", "least of a  window,")
    with pytest.raises(ProgramError) as refusal:
        Session(one.data, plugins=[str(other)])
    assert str(refusal.value).startswith(
        f"model: was built with plug-in mid_pool 1.0 (digest {digest[:12]}), and {other} is mid_pool"
    )
    unload_plugin("mid_pool")
    assert (Session(one.data, plugins=[str(file)]).run(None, sample)[0] == expected).all()


def test_a_file_of_steps_needs_no_plugin() -> None:
    one = built(norm_model(), "ws8_pow2", RMSNORM, (4, 8, 32))
    unload_plugin("rmsnorm")
    sample = samples((4, 8, 32), 1)[0]
    expected = rms(sample["x"])
    assert np.abs(Session(one.data).run(None, sample)[0] - expected).mean() < 0.05


def test_the_commands_take_plugins(tmp_path: Path) -> None:
    file = source_of("mid_pool")
    machine = tmp_path / "edge16.yaml"
    machine_with_functions("edge16", load_plugin(file), tmp_path)
    unload_plugin("mid_pool")
    onnx.save(pool_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=np.stack([s["x"] for s in samples((1, 8, 12, 10), 4)]))
    line = [str(tmp_path / "m.onnx"), "--hw", str(machine), "--calib", str(tmp_path / "c.npz")]
    run = CliRunner().invoke
    refused = run(application(build_command), line)
    assert (refused.exit_code, "functions.mid_pool: no such function" in refused.output) == (2, True)
    plugin = ["--plugin", str(file)]
    assert run(application(build_command), [*line, *plugin]).exit_code == 0
    unload_plugin("mid_pool")
    compiled = str(tmp_path / "m.npu")
    for command in (application(sim_command), dis_app):
        refused = run(command, [compiled])
        assert (refused.exit_code, "needs plug-in mid_pool 1.0" in refused.output) == (2, True)
        assert run(command, [compiled, *plugin]).exit_code == 0
        unload_plugin("mid_pool")
    script = Path(__file__).parents[2] / "scripts" / "calibrate.py"
    done = run_script(script, tmp_path / "m.onnx", "--data", tmp_path / "c.npz", *plugin, "-o", tmp_path / "p.yaml")
    assert done.returncode == 0, done.stderr


def test_a_first_table_has_the_row_of_a_plugin(tmp_path: Path) -> None:
    load_plugin(source_of("mid_pool"))
    text = (MACHINE.read_text()).replace("functions:\n", "functions:\n      mid_pool: {lanes: 8}\n")
    (tmp_path / "mine.yaml").write_text("".join(line for line in text.splitlines(True) if not line.startswith("isa:")))
    ran = CliRunner().invoke(hw_app, ["table", str(tmp_path / "mine.yaml")])
    assert (ran.exit_code, "  mid_pool:\n" in ran.output) == (0, True)


def test_a_name_of_an_entry_point_is_a_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "clips_of_a_package.py").write_text(source_of("soft_clip").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    point = importlib.metadata.EntryPoint("clips", "clips_of_a_package:PLUGIN", GROUP)
    monkeypatch.setattr("toolchain.plugin_loading.entry_points", lambda group: [point] if group == GROUP else [])
    (loaded,) = load_plugins(["clips"])
    assert (loaded.plugin.name, loaded.file) == ("soft_clip", tmp_path / "clips_of_a_package.py")
    with pytest.raises(CompileError) as refusal:
        load_plugins(["clip"])
    assert str(refusal.value) == (
        'plugin clip: must be FILE.py, or a plug-in of an installed package (installed: clips); did you mean "clips"?'
    )


FAULTY = {
    "raises at import": (
        "PLUGIN = Plugin(",
        "1 / 0\nPLUGIN = Plugin(",
        "ZeroDivisionError: division by zero (line 28); the file",
    ),
    "has no PLUGIN": (
        "PLUGIN = Plugin(",
        "OTHER = Plugin(",
        "declares no plug-in; write PLUGIN = Plugin(...) of toolchain.plugin",
    ),
    "is not frozen": ("@dataclass(frozen=True)", "@dataclass", "operator SoftClip: must be a dataclass with frozen=True"),
    "has a domain of ONNX": ('DOMAIN = "my.org"', 'DOMAIN = ""', "operator SoftClip: needs a DOMAIN of its own, not one of ONNX"),
    "has a domain version that is no number": (
        'DOMAIN = "my.org"',
        'DOMAIN = "my.org"\n    DOMAIN_VERSION = "2"',
        "operator SoftClip: DOMAIN_VERSION is '2', it must be an int from 1 on",
    ),
    "lacks steps": ("def steps(", "def other(", "operator SoftClip: has no method steps"),
    "has a field of another type": (
        "slope: float = 1.0",
        "slope: float | None = None",
        "operator SoftClip: field slope is float | None; an attribute is int, float, str, tuple[int, ...] or tuple[float, ...]",
    ),
    "has a field of no known type": (
        "slope: float = 1.0",
        'slope: "Slope" = 1.0',
        "operator SoftClip: the types of its fields cannot be read: name 'Slope' is not defined",
    ),
    "example of a class": ("Example(SoftClip(limit=2.0)", "Example(SoftClip", "example 0: its operator <class"),
    "a shape without a comma": ("((4, 30),)", "((4, 30))", "example 1: 4 among its inputs is no array, no shape and not None"),
    "one input alone": ("((4, 30),)", "4", "example 1: its inputs must be a tuple, one entry an input, they are 4"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_file_that_is_no_plugin_is_refused(fault: str, tmp_path: Path) -> None:
    old, new, reason = FAULTY[fault]
    file = break_plugin("soft_clip", tmp_path, old, new)
    with pytest.raises(CompileError) as refusal:
        load_plugin(file)
    assert str(refusal.value).startswith(f"plugin {file}: {reason}")


USED = {
    "infer raises": (
        "return TensorType(x.shape, x.dtype)",
        "return x.size",
        "AttributeError: 'TensorType' object has no attribute",
    ),
    "infer returns a list": ("return TensorType(x.shape, x.dtype)", "return [x]", "infer returns [TensorType("),
    "infer is wrong": ("TensorType(x.shape, x.dtype)", "TensorType((1,), x.dtype)", "infer says that output 'n' is float32[1]"),
    "steps raises": ('"Tanh", build.add(', '"Tanh", build.ad(', "'Steps' object has no attribute 'ad'"),
    "steps returns nothing": ("        return build.add(", "        build.add(", "steps returns None; it must return the name"),
    "steps reads an unknown name": (
        '"Tanh", build.add("Mul", x,',
        '"Tanh", build.add("Mul", "z",',
        "its step Mul reads 'z', which is",
    ),
    "steps has no such operator": ('"Tanh"', '"Tanhh"', "Tanhh"),
}


@pytest.mark.parametrize("fault", USED)
def test_a_fault_of_a_plugin_is_one_sentence(fault: str, tmp_path: Path) -> None:
    old, new, reason = USED[fault]
    file = break_plugin("soft_clip", tmp_path, old, new)
    with pytest.raises(CompileError) as refusal:
        built(norm_model("SoftClip <limit = 2.0> (r)"), "edge16", file, (4, 8, 32))
    assert reason in str(refusal.value)
    assert len(str(refusal.value).splitlines()) <= 2


def test_a_fault_in_the_tiles_of_a_plugin_is_one_sentence(tmp_path: Path) -> None:
    file = break_plugin("mid_pool", tmp_path, "total = windows.max(3)", "total = windows.max(7)")
    machine = machine_with_functions("edge16", load_plugin(file), tmp_path)
    with pytest.raises(CompileError) as refusal:
        built(pool_model(), machine, file, (1, 8, 12, 10))
    assert str(refusal.value) == (
        f"plug-in mid_pool: AxisError: axis 7 is out of bounds for array of dimension 5 (line 67); mend {file}"
    )


ATTRIBUTES = {
    "SoftClip (r)": 'node SoftClip_1 (SoftClip): lacks its attribute "limit"',
    "SoftClip <limit = 2> (r)": 'node SoftClip_1 (SoftClip): its attribute "limit" is INT, SoftClip takes FLOAT',
    "SoftClip <limit = 2.0, top = 1> (r)": 'node SoftClip_1 (SoftClip): has no attribute "top"; it takes limit, slope',
    "SoftClip <limit = 2.0> (r, s)": "node SoftClip_1 (SoftClip): has 2 inputs, 1 to 1 are allowed",
}


@pytest.mark.parametrize("node", ATTRIBUTES)
def test_attributes_and_inputs_are_held_to_the_plugin(node: str) -> None:
    with pytest.raises(CompileError) as refusal:
        built(norm_model(node), "edge16", source_of("soft_clip"), (4, 8, 32))
    assert str(refusal.value) == ATTRIBUTES[node]


def test_a_newer_version_of_the_domain_than_the_plugin_knows_is_refused(tmp_path: Path) -> None:
    model = norm_model("SoftClip <limit = 2.0> (r)")
    next(opset for opset in model.opset_import if opset.domain == "my.org").version = 2
    with pytest.raises(CompileError) as refusal:
        built(model, "edge16", source_of("soft_clip"), (4, 8, 32))
    assert str(refusal.value).splitlines() == [
        'node SoftClip_1 (SoftClip): the model imports version 2 of "my.org", '
        "plug-in soft_clip defines the operator of version 1",
        "  help: write DOMAIN_VERSION = 2 into its class where it means the same, or export with the older version",
    ]
    unload_plugin("soft_clip")
    newer = break_plugin("soft_clip", tmp_path, 'DOMAIN = "my.org"', 'DOMAIN = "my.org"\n    DOMAIN_VERSION = 2')
    assert built(model, "edge16", newer, (4, 8, 32)).container.fallbacks == ()


def test_an_optional_input_may_be_absent() -> None:
    one = built(norm_model("UnitNorm (r)"), "transformer64", source_of("unit_norm"), (4, 8, 32))
    assert one.container.fallbacks == ()


def test_two_plugins_of_one_name_are_refused(tmp_path: Path) -> None:
    first = load_plugin(source_of("soft_clip"))
    file = break_plugin("soft_clip", tmp_path, "two parameters.", "two  parameters.")
    with pytest.raises(CompileError) as refusal:
        load_plugin(file)
    assert str(refusal.value) == (
        f"plugin {file}: plug-in soft_clip is loaded already, from {first.file}, which differs; give one of them"
    )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    ran = CliRunner().invoke(application(build_command), ["m.onnx", "--hw", "edge16", "--plugin", str(tmp_path / "no.py")])
    assert (ran.exit_code, ran.output) == (2, f"--plugin {tmp_path / 'no.py'}: no such file or directory\n")


def test_an_unknown_domain_names_both_ways_out() -> None:
    with pytest.raises(CompileError) as refusal:
        build(norm_model(), BuildOptions("edge16"))
    assert str(refusal.value).splitlines() == [
        'node RMSNorm_1 (RMSNorm): domain "my.org" is not known',
        "  help: give a plug-in that defines it (--plugin FILE.py), or a library of onnxruntime that runs it on the host "
        "(--custom-ops LIBRARY), or export the model with standard operators only",
    ]


def test_the_machine_of_the_example_has_the_functions() -> None:
    assert {"sqrt", "reciprocal"} <= load_machine(str(MACHINE)).chip.functions


DECLARATIONS = {
    'PLUGIN = Plugin("p", "1", (SoftClip))': "operators must be a tuple, as (Operator,) with its comma",
    'PLUGIN = Plugin("p", "1", ())': "has no operators",
    'PLUGIN = Plugin("p", "1", (SoftClip, SoftClip))': "operator SoftClip of my.org is there twice; leave one out",
    'PLUGIN = Plugin("p", "1", (SoftClip,), Example(SoftClip(limit=2.0), ()))': "examples must be a tuple, as (Example,)",
    'PLUGIN = Plugin("p", "1", (SoftClip,), (SoftClip,))': "examples must hold nothing but Example(...)",
    'PLUGIN = Plugin("p", "1", (SoftClip,), values=None)': "values must be a dict",
    'PLUGIN = Plugin("p", "1", (SoftClip,), rules=[SoftClip])': "rules must be a dict",
}


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_a_declaration_of_another_form_is_refused(declaration: str, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(source_of("soft_clip").read_text().partition("PLUGIN =")[0] + declaration)
    with pytest.raises(CompileError) as refusal:
        load_plugin(file)
    assert f"plugin {file}: plug-in p: {DECLARATIONS[declaration]}" in str(refusal.value)


def test_a_folder_of_its_name_hides_no_installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rmsnorm").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"plugin rmsnorm: must be FILE\.py, or a plug-in of an installed package"):
        load_plugins(["rmsnorm"])


def test_a_machine_operation_of_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    file = break_plugin("mid_pool", tmp_path, 'ENGINE = "vector"', 'ENGINE = "vectors"')
    with pytest.raises(CompileError, match=r"MidPoolOp: ENGINE is 'vectors'; known: 'dma', 'mac_array', 'vector', None"):
        load_plugin(file)
