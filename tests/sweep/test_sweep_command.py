"""npu-sweep from the file to the page: what is stored is not built again, and the bytes do not depend on who builds."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tiny_sweep import TINY, write_tiny

from tests.cli.commands import Printed, run
from toolchain.sweep import extra

NO_POINT_FITS = TINY.replace("[32 KiB, 128 KiB]", "[32 KiB, 128 KiB, 32]")


def read_rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").open()))


def count_built(printed: Printed) -> int:
    assert printed.code == 0, printed.err
    return int(re.findall(r"; (\d+) new result", printed.out)[0])


class Page(HTMLParser):
    """Collects the ids of a page, what its links lead to, and whatever would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.fetched = set[str](), set[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(str(value))
            elif name == "href" and str(value).startswith("#"):
                self.links.add(str(value)[1:])
            elif name in ("src", "href", "action", "data", "srcset", "poster"):
                self.fetched.append(f"{tag} {value}")


def test_a_sweep_goes_on_and_an_edited_one_builds_only_what_is_new(tmp_path: Path) -> None:
    file = write_tiny(tmp_path)
    assert count_built(run(f"npu-sweep {file} --jobs 2 --parquet")) == 4
    table = (tmp_path / "sweep.results" / "results.csv").read_bytes()
    parquet = (tmp_path / "sweep.results" / "results.parquet").read_bytes()
    assert [(r["engines.mac.rows"], r["memories.sram.size"], r["status"]) for r in read_rows(tmp_path / "sweep.results")] == [
        (a, b, "built") for a in ("8", "16") for b in ("32 KiB", "128 KiB")
    ]
    assert count_built(run(f"npu-sweep {file} --jobs 1 --store {tmp_path / 'fresh'} --parquet")) == 4
    assert (tmp_path / "sweep.results" / "results.csv").read_bytes() == table
    assert (tmp_path / "sweep.results" / "results.parquet").read_bytes() == parquet
    assert count_built(run(f"npu-sweep {file}")) == 0
    write_tiny(tmp_path, NO_POINT_FITS)
    printed = run(f"npu-sweep {file}")
    assert count_built(printed) == 2
    assert "WARNING: 2 builds failed: hw_configs/edge16.yaml:19: memories.sram.size: " in printed.err
    assert [r["status"] for r in read_rows(tmp_path / "sweep.results")] == ["built", "built", "refused"] * 2


def test_the_page_needs_nothing_beside_it_and_has_the_front_and_the_failures(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, NO_POINT_FITS.replace("tiny:", "a-b:"))
    assert run(f"npu-sweep {file} --objectives cycles,dram_bytes").code == 0
    text = (tmp_path / "sweep.results" / "report.html").read_text()
    page, table = Page(text), read_rows(tmp_path / "sweep.results")
    assert page.fetched == [] and not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert page.links <= page.ids
    built = {r["key"][:16] for r in table if r["status"] == "built"}
    assert built <= page.links
    front = {link[1:] for link in page.links if link.startswith("r") and len(link) == 17}
    assert front and front <= built and text.count("MAC utilization") + text.count("cycles") > 5
    assert "2 builds failed" in text and "memories.sram.size: " in text
    key = next(iter(front))
    report = run(f"npu-sweep {file} --report {key}").out
    assert "tiny on edge16" in report and report.splitlines()[0] in text
    assert (
        run(f"npu-sweep {file} --report zz").err
        == "--report zz: no build has a key that begins so; the column key of results.csv lists them\n"
    )


def test_a_sweep_of_which_no_build_succeeds_exits_with_1_and_keeps_its_rows(tmp_path: Path) -> None:
    file, results = write_tiny(tmp_path, TINY.replace("[32 KiB, 128 KiB]", "[32, 64]")), tmp_path / "sweep.results"
    for _ in range(2):  # built, and read in the store
        printed = run(f"npu-sweep {file}")
        assert (printed.code, len(read_rows(results))) == (1, 4)
        assert "Pareto front of tiny: no point has all of cycles, " in printed.out
        assert printed.err.splitlines()[-1] == f"no build succeeded, of 4 builds; {results / 'results.csv'} has the reasons"


def test_a_refused_sweep_leaves_no_store(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, TINY.replace("tiny.onnx", "missing.onnx"))
    before = sorted(tmp_path.iterdir())
    refused = run(f"npu-sweep {file}")
    assert (refused.code, refused.out) == (2, "") and "missing.onnx" in refused.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_search_asks_the_same_points_of_any_number_of_workers(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, TINY.replace("[8, 16]", "[4, 8, 16, 32]").replace("level: 1", "level: [0, 1]"))
    search = f"npu-sweep {file} --trials 6 --batch 3 --objectives cycles,sram_bytes"
    assert run(f"{search} -o {tmp_path / 'a'} --jobs 2").code == 0
    assert 2 < len(read_rows(tmp_path / "a")) <= 6
    assert count_built(run(f"{search} -o {tmp_path / 'b'} --jobs 1")) == 0
    assert (tmp_path / "a" / "results.csv").read_bytes() == (tmp_path / "b" / "results.csv").read_bytes()
    assert run(f"{search} -o {tmp_path / 'c'} --seed 1").code == 0
    assert read_rows(tmp_path / "c") != read_rows(tmp_path / "a")


@pytest.mark.parametrize(
    ("library", "options", "purpose"),
    [
        ("joblib", "", "npu-sweep"),
        ("distributed", " --scheduler tcp://127.0.0.1:9", "--scheduler tcp://127.0.0.1:9"),
        ("pyarrow", " --parquet", "--parquet"),
        ("optuna", " --trials 2", "--trials"),
    ],
)
def test_a_missing_library_is_one_sentence(
    library: str, options: str, purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_tiny(tmp_path)
    original = extra.import_module

    def import_module(name: str) -> Any:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return original(name)

    monkeypatch.setattr(extra, "import_module", import_module)
    printed = run(f"npu-sweep {file}{options}")
    assert printed.err == f"{purpose}: needs {library}, which is not installed; pip install 'npu-toolchain[sweep]' brings it\n"
    assert printed.code == 2 and not (tmp_path / "sweep.results").exists()


REFUSED = [
    ("--jobs 0", "--jobs 0: must be 1 or more\n"),
    ("--trials 0", "--trials 0: must be 1 or more\n"),
    ("--objectives cycle", "--objectives cycle: there is no objective 'cycle'; did you mean \"cycles\"?\n"),
    (
        "--jobs 2 --scheduler tcp://h:1",
        "--jobs 2: is for this machine; workers of --scheduler tcp://h:1 have threads of their own\n",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_wrong_options_are_refused(options: str, sentence: str, tmp_path: Path) -> None:
    printed = run(f"npu-sweep {write_tiny(tmp_path)} {options}")
    assert (printed.code, printed.err) == (2, sentence)
