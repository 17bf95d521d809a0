"""A sweep file is read with all its faults; a wrong one gets a sentence with its line."""

from pathlib import Path

import numpy as np
import pytest
from tiny_sweep import TINY, write_tiny

from toolchain.api import BuildOptions
from toolchain.errors import ConfigError
from toolchain.sweep import list_grid, read_sweep
from toolchain.sweep.build_job import build_options
from toolchain.sweep.points import JobMaker, count_grid

KEYS = "sweep.yaml:6: machines.edge.keys"
REFUSED = [
    (
        "engines.mac.rows",
        "engines.mac.rovs",
        f'{KEYS}.engines.mac.rovs: edge16 has no key engines.mac.rovs; did you mean "rows"?',
    ),
    (
        "memories.sram.size",
        "'clock.frequency, engines.mac.rows'",
        f"{KEYS}.clock.frequency, engines.mac.rows: engines.mac.rows is also changed by 'engines.mac.rows'",
    ),
    ("[8, 16]", "[]", f"{KEYS}.engines.mac.rows: must have at least 1 entries, got 0"),
    (
        "edge16",
        "edge17",
        "sweep.yaml:5: machines.edge.file: no machine named 'edge17'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    ("edge16", "gone.yaml", "sweep.yaml:5: machines.edge.file: gone.yaml: no such file or directory"),
    ("tiny.onnx", "gone.onnx", "sweep.yaml:2: networks.tiny.model: gone.onnx: no such file or directory"),
    ("level: 1", "level: 4", "sweep.yaml:7: options.level[0]: must be at most 3, got 4"),
    ("repair", "repare", 'sweep.yaml:7: options.repare: no such key; did you mean "repair"?'),
    ("machines", "machine", 'sweep.yaml:3: machine: no such key; did you mean "machines"?'),
]


@pytest.mark.parametrize(("old", "new", "sentence"), REFUSED)
def test_a_wrong_file_is_refused_by_line(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    file = write_tiny(tmp_path, TINY.replace(old, new))
    with pytest.raises(ConfigError) as refusal:
        read_sweep(file)
    assert sentence in str(refusal.value).replace(f"{tmp_path}/", "").splitlines()


def test_the_grid_has_every_combination_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = TINY.replace("level: 1", "level: [1, 2]") + "  \nlimits: {seconds: 9}\n"
    sweep = read_sweep(write_tiny(tmp_path, text.replace("options", "  other: {file: ethos_u55_256}\noptions")))
    points = [(p.machine, *(v for _, v in p.keys), dict(p.options)["level"]) for p in list_grid(sweep)]
    sizes = [(r, s, level) for r in (8, 16) for s in ("32 KiB", "128 KiB") for level in (1, 2)]
    assert points == [*(("edge", *one) for one in sizes), ("other", 1), ("other", 2)]
    assert count_grid(sweep) == len(points)


def list_keys(file: Path) -> list[str]:
    jobs = JobMaker(read_sweep(file), code="c")
    return [jobs.make(point).key for point in list_grid(jobs.sweep)]


def test_the_data_of_a_network_may_be_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep is read from the folder of its file, where the name alone says where the data lie."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    file = write_tiny(tmp_path, TINY.replace("tiny.onnx", "tiny.onnx, calib: data"))
    keys = []
    for number in range(2):
        np.save(tmp_path / "data" / f"{number}.npy", np.ones((4, 8, 8), np.float32))
        keys += list_keys(Path(file.name))
    assert len(set(keys)) == 8


def test_the_key_of_a_build_is_of_its_content(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    before = list_keys(write_tiny(tmp_path, TINY))
    assert len(set(before)) == 4
    renamed = TINY.replace("tiny:", "net:").replace("edge:", "m:").replace("128 KiB", "128 KiB, 64 KiB")
    assert set(before) < set(list_keys(write_tiny(tmp_path / "other", renamed + "limits: {memory: 1 GiB}")))
    for changed in (TINY.replace("level: 1", "level: 2"), TINY.replace("edge16", "wide32_w4a16")):
        assert set(before).isdisjoint(list_keys(write_tiny(tmp_path, changed)))
    assert set(before).isdisjoint(list_keys(write_tiny(tmp_path, TINY, weight=2.0)))
    with_data = TINY.replace("model: tiny.onnx", "model: tiny.onnx, calib: 'data.py:good'")
    of_data = list_keys(write_tiny(tmp_path, with_data))
    assert set(of_data).isdisjoint(list_keys(write_tiny(tmp_path, with_data.replace("good", "hangs"))))
    write_tiny(tmp_path, with_data)
    (tmp_path / "data.py").write_text("# another\n")
    assert set(of_data).isdisjoint(list_keys(tmp_path / "sweep.yaml"))


def test_the_key_depends_on_the_toolchain_and_not_on_a_machines_comments(tmp_path: Path) -> None:
    from hw_configs import __path__ as shipped

    text = (Path(shipped[0]) / "edge16.yaml").read_text()
    file = write_tiny(tmp_path, TINY.replace("edge16", "mine.yaml"))
    (tmp_path / "mine.yaml").write_text(text)
    before = list_keys(file)
    (tmp_path / "mine.yaml").write_text(text.replace("description: ", "description: my ") + "# the end\n")
    assert list_keys(file) == before
    (tmp_path / "mine.yaml").write_text(text.replace("latency_cycles: 64", "latency_cycles: 65"))
    assert set(list_keys(file)).isdisjoint(before)
    sweep = read_sweep(file)
    point = next(list_grid(sweep))
    assert JobMaker(sweep, code="c").make(point).key != JobMaker(sweep, code="d").make(point).key


def test_a_point_is_built_with_the_options_of_npu_build(tmp_path: Path) -> None:
    text = TINY.replace("level: 1, repair: none", "level: 3, optimize: traffic, sram_budget: 16 KiB, samples: 4")
    sweep = read_sweep(write_tiny(tmp_path, text))
    options = build_options(JobMaker(sweep, code="c").make(next(list_grid(sweep))))
    assert (options.level, options.samples, options.repair) == (3, 4, None)
    assert (options.goal.objective, options.goal.sram_bytes) == ("traffic", 16384)
    assert options.hardware.chip.engines["mac"].rows == 8 and options.hardware.chip.sram.size == 32768
    sweep = read_sweep(write_tiny(tmp_path, TINY))
    options = build_options(JobMaker(sweep, code="c").make(next(list_grid(sweep))))
    assert options.goal == BuildOptions("edge16").goal
