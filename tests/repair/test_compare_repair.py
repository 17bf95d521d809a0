"""bench/compare_repair.py: nothing is on both sides, machines with other numerics, no such key, and how judges count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import get_args

import numpy as np
import pytest
from onnx import helper

from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleKind
from scripts.onnx_builder import build_model
from toolchain.errors import CompileError
from toolchain.isa import machine_from_json, machine_to_json

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCH))
    try:
        import compare_repair

        yield compare_repair
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def judges(script: ModuleType) -> ModuleType:
    return sys.modules["repair_datasets"]


def model(**metadata: str):
    """Return a model with one input and its metadata."""
    proto = build_model([], {"x": [1, 3, 64, 64]}, {})
    helper.set_model_props(proto, metadata)
    return proto


def test_photographs_are_dealt_into_two_folds(judges: ModuleType) -> None:
    import stamp_dataset

    folds = [judges.fold_of(name) for name in stamp_dataset.ACCEPTED]
    assert sorted(set(folds)) == [0, 1] and abs(folds.count(0) - folds.count(1)) <= 1


def test_words_and_sentences_are_dealt_into_two_folds(judges: ModuleType) -> None:
    words: list[set[str]] = [set(), set()]
    for fold in (0, 1):
        texts = [item.truth for item in islice(judges.Strings(model(character="a"), None).iterate_judged(fold), 60)]
        words[fold] = {word.lower() for text in texts for word in text.split()}
    assert all(words) and not words[0] & words[1]
    pairs = judges.list_documented()
    assert len(pairs) > 400 and len({first for first, _ in pairs}) == len(pairs)


def test_what_is_calibrated_on_is_of_the_other_fold(judges: ModuleType, tmp_path: Path) -> None:
    from PIL import Image

    for index, shade in enumerate((20, 220)):  # of which fold a picture is shows in its light
        Image.new("RGB", (90, 80), (shade, shade, shade)).save(tmp_path / f"{index}.png")
    judge = judges.Letters(model(), tmp_path)
    for fold in (0, 1):
        calibration_image, judged = (
            next(iter(judge.iterate_calibration(fold, 1)))["x"],
            next(judge.iterate_judged(fold)).feed["x"],
        )
        assert [int(np.median(x)) for x in (judged, calibration_image)] == ([20, 220] if fold == 0 else [220, 20])


def test_a_recognizer_s_labels_are_read_as_ctc_has_them(judges: ModuleType) -> None:
    judge = judges.Strings(model(character="a\nb"), None)
    labels = [1, 1, 0, 1, 2, 2, 3, 0, 1]
    assert judge.get_answer([np.eye(4)[labels][None]]) == "aab a"
    assert judges.distance("kitten", "sitting") == 3 and judges.distance("", "ab") == 2
    exact, points, error, similarity, wrong = judge.format_scores(["ab", "b"], ["ab", "b"], ["ab", "a"])
    assert (exact, points, error, similarity, wrong) == ("50.0", "-50.0", "50.0", "50.0", "33.3")
    with pytest.raises(CompileError, match=r"^the model's metadata has no `character`"):
        judges.Strings(model(), None)


def test_lines_are_found_and_matched(judges: ModuleType) -> None:
    mask = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]], bool)
    assert sorted(judges.find_connected(mask)) == [(0, 0, 2, 2), (3, 1, 4, 3)]
    u = np.zeros((4, 5), bool)
    u[:, 0] = u[:, 4] = u[3] = True
    assert judges.find_connected(u) == [(0, 0, 5, 4)]
    assert judges.overlap((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)
    expected_boxes = [(0, 0, 10, 10), (20, 0, 30, 10)]
    assert judges.match_boxes([(0, 0, 10, 9), (0, 0, 10, 8), (50, 50, 60, 60)], expected_boxes) == (1, 3, 2)
    probability = np.zeros((40, 60), np.float32)
    probability[10:20, 10:50] = 1
    ((left, top, right, bottom),) = judges.lines_of(probability)
    assert (left, right) == (10 - 6.4, 50 + 6.4) and (top, bottom) == (10 - 6.4, 20 + 6.4)


def test_tokens_are_the_longest_pieces(script: ModuleType) -> None:
    from sentence_dataset import Tokens

    vocabulary = {"[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "un": 4, "##seen": 5, "##s": 6, "cafe": 7, ".": 8}
    ids, mask = Tokens({"model": {"vocab": vocabulary, "unk_token": "[UNK]"}}, 8)("Unseen Café. xyz")
    assert ids.tolist() == [[1, 4, 5, 7, 8, 3, 2, 0]] and mask.tolist() == [[1] * 7 + [0]]


def test_numerics_of_a_machine_are_changed(script: ModuleType) -> None:
    machine = script.vary_machine("edge16,weights_per_channel=false,rounding=floor")
    numerics = machine.chip.numerics
    assert (numerics.weights_per_channel, numerics.rounding) == (False, "floor")
    assert machine_from_json(machine_to_json(machine)).chip == machine.chip  # as a file that was built for it is read


def test_every_arithmetic_is_a_machine(script: ModuleType) -> None:
    texts = list(script.every_arithmetic("edge16"))
    keys = [script.vary_machine(text).chip.numerics_keys for text in texts]
    assert {k.rounding for k in keys} == set(Rounding) and {k.scale.kind for k in keys} == set(get_args(ScaleKind))
    assert len(set(texts)) == len(texts) == 20


def test_keys_that_do_not_go_together_are_no_machine(script: ModuleType) -> None:
    with pytest.raises(CompileError, match=r"^--hw edge16,scale.kind=pow2: numerics\.rounding: double_round is not defined for"):
        script.vary_machine("edge16,scale.kind=pow2")


@pytest.mark.parametrize("change", ["colour=red", "rounding"])
def test_no_such_key(script: ModuleType, change: str) -> None:
    with pytest.raises(CompileError, match=f"^--hw edge16,{change}: {change} is no KEY=VALUE of numerics; keys are activation, "):
        script.vary_machine(f"edge16,{change}")


def test_a_table_has_a_line_for_each(script: ModuleType, judges: ModuleType) -> None:
    rng = np.random.default_rng(0)
    real = [rng.standard_normal(10) for _ in range(4)]
    truths = [(int(r.argmax()),) for r in real]
    lines = [
        script.RepairScore("float", real),
        script.RepairScore("half", [r.round(0) for r in real]),
        script.RepairScore("none", []),
    ]
    text = script.text_of(judges.Labelled(model(), None), truths, lines).splitlines()
    assert text[0].startswith("n 4 ") and "100.00" in text[2] and text[-1].split() == ["none", "refused"]
    marked = script.text_of(judges.Labelled(model(), None), truths, lines, markdown=True).splitlines()
    assert marked[0].startswith("| n 4 | top-1 % |") and marked[1].startswith("| --- | --- |")
    assert len({line.count("|") for line in marked}) == 1 and len(marked) == 5
