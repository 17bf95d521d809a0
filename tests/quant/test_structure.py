"""Ranges that data cannot show: scores never seen, attention masks, the parts of a Concat."""

from __future__ import annotations

import numpy as np
from edge_numerics import EDGE
from models import model, node

from quant.observe import Masking, Range
from quant.structural_ranges import adjust_ranges, find_shared_scale_parts, format_poor_parts

LOWEST = float(np.finfo(np.float32).min)


def test_scores_that_the_data_never_held_stay_reachable() -> None:
    proto = model(
        [node("Sigmoid", "x", "s"), node("Transpose", "s", "t", perm=[1, 0]), node("Mul", "t scale", "y")],
        {"x": [2, 3]},
        ["y"],
        {"scale": np.array(640, np.float32)},
    )
    adjusted = adjust_ranges(proto, {"x": Range(-9, -2), "s": Range(0.0, 0.12), "t": Range(0.0, 0.12), "y": Range(0, 77)})
    assert adjusted.ranges == {"x": Range(-9, 4), "s": Range(0, 1), "t": Range(0, 1), "y": Range(0, 77)}
    assert adjusted.notes == (
        "x: the data's largest logit is -2, so no score passes 0.12; its range was opened to 4. "
        "Calibrate with data that holds positives",
    )
    # positives are there already
    adjusted = adjust_ranges(proto, {"x": Range(-9, 2.7), "s": Range(0, 0.94), "t": Range(0, 0.94), "y": Range(0, 600)})
    assert adjusted.notes == ("x: the data's largest logit is 2.7, so no score passes 0.94; its range was opened to 4",)


def test_gates_and_balanced_logits_are_left_alone() -> None:
    gate = model([node("Sigmoid", "x", "s"), node("Mul", "x s", "y")], {"x": [4]}, ["y"])
    ranges = {"x": Range(-9, -2), "s": Range(0.0, 0.12), "y": Range(-1, 0)}
    assert adjust_ranges(gate, ranges).ranges == ranges
    score = model([node("Sigmoid", "x", "y")], {"x": [4]}, ["y"])
    assert adjust_ranges(score, {"x": Range(-1, 2)}).ranges == {"x": Range(-1, 2)}


def test_a_score_that_is_a_product_is_found() -> None:
    nodes = [node("Sigmoid", "a", "p"), node("Sigmoid", "b", "q"), node("Mul", "p q", "y")]
    proto = model(nodes, {"a": [4], "b": [4]}, ["y"])
    adjusted = adjust_ranges(proto, {"a": Range(-5, -1), "b": Range(-5, 5), "p": Range(0, 0.3), "q": Range(0.2, 1)})
    assert adjusted.ranges == {"a": Range(-5, 4), "b": Range(-5, 5), "p": Range(0, 1), "q": Range(0, 1)}


def test_masks_end_where_everything_is_masked() -> None:
    """One mask for two layers, whose scores span 20 and 10: the wider one decides."""
    nodes = [
        node("Unsqueeze", "m axes", "mask"),
        node("Add", "mask b", "bm"),
        node("Softmax", "bm", "z"),
        node("Add", "a mask", "am"),
        node("Softmax", "am", "y"),
    ]
    proto = model(nodes, {"m": [8], "a": [1, 8], "b": [1, 8]}, ["y", "z"], {"axes": np.array([0])})
    ranges = {
        "m": Range(LOWEST, 0),
        "mask": Range(LOWEST, 0),
        "a": Range(-4, 6),
        "b": Range(-10, 10),
        "am": Range(LOWEST, 6, masking=Masking(Range(LOWEST, 6), -20.0)),
        "bm": Range(LOWEST, 10, masking=Masking(Range(LOWEST, 10), -26.0)),
    }
    adjusted = adjust_ranges(proto, ranges)
    assert adjusted.ranges == {
        "m": Range(-36, 0),
        "mask": Range(-36, 0),
        "a": Range(-4, 6),
        "b": Range(-10, 10),
        "am": Range(-20, 6),
        "bm": Range(-26, 10),
    }
    assert len(adjusted.notes) == 2
    # the least score that any row can have, masked, is still nothing beside the largest
    scores = np.array([-10.0, 10.0 - 36.0])
    assert (np.exp(scores) / np.exp(scores).sum())[1] < 2e-7


def test_a_concat_holds_its_operands_and_its_poor_parts_are_named() -> None:
    proto = model([node("Concat", "boxes scores", "y", axis=0)], {"boxes": [4], "scores": [80]}, ["y"])
    ranges = {"boxes": Range(0, 640), "scores": Range(0, 1), "y": Range(0, 600)}
    adjusted = adjust_ranges(proto, ranges).ranges
    assert adjusted["y"] == Range(0, 640)
    boxes, scores = find_shared_scale_parts(proto, adjusted, EDGE)
    assert not boxes.poor and boxes.steps == 256
    assert scores.poor
    assert str(scores) == "y_node: scores in [0, 1] gets 1.4 codes of the joined range [0, 640], alone it would get 256"


def test_of_many_poor_parts_the_worst_have_a_line() -> None:
    names = [f"p{i}" for i in range(6)]
    proto = model([node("Concat", " ".join(["boxes", *names]), "y", axis=0)], {n: [4] for n in ["boxes", *names]}, ["y"])
    ranges = {"boxes": Range(0, 640), "y": Range(0, 640), **{n: Range(0, 40 - 5 * i) for i, n in enumerate(names)}}
    warnings = format_poor_parts(find_shared_scale_parts(proto, ranges, EDGE))
    assert [line.split()[1] for line in warnings[:4]] == ["p5", "p4", "p3", "p2"]
    assert warnings[4:] == ["2 more operands of Concats with fewer than 32 codes"]
    others = {n: r for n, r in ranges.items() if n not in names[:2]}
    assert len(format_poor_parts(find_shared_scale_parts(proto, others, EDGE))) == 4


def test_a_tensor_of_zeros_takes_the_range_of_its_source() -> None:
    """Check that zeros also take their range through a tensor without a range (b).
    An input that was never fed takes [-1, 1]; a joined range is not widened.
    """
    nodes = [node("Sub", "x x", "a"), node("Relu", "a", "b"), node("Abs", "b", "c"), node("Concat", "c w", "y", axis=0)]
    proto = model([*nodes, node("Neg", "u", "v")], {"x": [4], "w": [4], "u": [4]}, ["y", "v"])
    silent = {name: Range(0.0, 1e-12) for name in "acuv"}
    adjusted = adjust_ranges(proto, {"x": Range(-8, 2), "w": Range(-1, 1), "y": Range(-1, 1), **silent})
    assert adjusted.ranges == {
        "x": Range(-8, 2),
        "w": Range(-1, 1),
        "y": Range(-1, 1),
        **{name: Range(-8, 2) for name in "ac"},
        **{name: Range(-1, 1) for name in "uv"},
    }
    assert adjusted.notes == (
        "u: the data holds nothing but zeros for this input; [-1, 1] was taken. Calibrate with real data",
        "a: zero throughout the data; it took the range [-8, 2]",
        "c: zero throughout the data; it took the range [-8, 2]",
        "v: zero throughout the data; it took the range [-1, 1]",
    )


def test_what_was_never_true_is_not_silent() -> None:
    proto = model([node("Equal", "x zero", "e"), node("Cast", "e", "c", to=1), node("Add", "x c", "y")], {"x": [4]}, ["y"], ZERO)
    adjusted = adjust_ranges(proto, {"x": Range(1, 2), "c": Range(0, 0), "y": Range(1, 2)})
    assert (
        adjusted.ranges == {"x": Range(1, 2), "c": Range(0, 1), "y": Range(1, 2)} and not adjusted.notes and not adjusted.unseen
    )


ZERO = {"zero": np.zeros((), np.float32)}
