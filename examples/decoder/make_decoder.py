#!/usr/bin/env python3
"""Write a tiny decoder as standard ONNX: two blocks with grouped heads, rotary embedding, RMSNorm and a cache of fixed length.

    `python examples/decoder/make_decoder.py DIR`.

The file step.onnx makes the logits of any number of tokens and puts their keys and values into caches of 256 steps
(TensorScatter).
The file whole.onnx takes 200 tokens at once and has no cache.
Both have the same weights, drawn from a seed: it writes letters, and no sense.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = " etaoinshrdlucmfwypvbgkjqxz.,\n"  # one letter a token
BLOCKS, WIDTH, HEADS, GROUPS, DEPTH, INNER = 2, 64, 4, 2, 16, 128
PLACES, SEQUENCE, SEED, BLOCK = 256, 200, 7, 32


class Writer:
    """A collector of nodes and weights; the names of weights do not depend on the kind of model.

    `bits`: of the weights of products, as MatMulNBits has them; None: they are float.
    """

    def __init__(self, bits: int | None = None) -> None:
        self.bits = bits
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def add(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def keep(self, name: str, value: np.ndarray) -> str:
        self.weights[name] = value
        return name

    def drawn(self, name: str, *shape: int, spread: float) -> str:
        return self.keep(name, drawn(name, *shape, spread=spread))

    def product(self, output: str, x: str, name: str, *shape: int, spread: float) -> str:
        weight = drawn(name, *shape, spread=spread)
        return self.add("MatMul", output, x, self.keep(name, weight if self.bits is None else round_weight(weight, self.bits)))


def drawn(name: str, *shape: int, spread: float) -> np.ndarray:
    return np.random.default_rng([SEED, *name.encode()]).normal(0, spread, shape).astype(np.float32)


def in_blocks(weight: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """float32[k, n] -> codes uint8[n, k / BLOCK, BLOCK], whose zero point is in the middle, and scales float32[n, k / BLOCK]."""
    middle = 1 << (bits - 1)
    blocks = weight.T.reshape(weight.shape[1], -1, BLOCK)
    scales = np.abs(blocks).max(-1) / np.float32(middle - 1)
    return np.rint(blocks / scales[..., None] + middle).astype(np.uint8), scales


def round_weight(weight: np.ndarray, bits: int) -> np.ndarray:
    codes, scales = in_blocks(weight, bits)
    real = (codes.astype(np.float32) - (1 << (bits - 1))) * scales[..., None]
    return np.ascontiguousarray(real.reshape(weight.shape[1], -1).T)


def heads(w: Writer, x: str, name: str, count: int, angles: tuple[str, str] | None) -> str:
    """[1, length, WIDTH] -> [1, count, length, DEPTH], turned by its place where angles are given."""
    flat = w.product(f"{name}.flat", x, f"{name}.weight", WIDTH, count * DEPTH, spread=WIDTH**-0.5)
    shape = w.keep(f"{name}.shape", np.array([0, 0, count, DEPTH], np.int64))
    split_heads = w.add("Transpose", f"{name}.heads", w.add("Reshape", f"{name}.apart", flat, shape), perm=[0, 2, 1, 3])
    return split_heads if angles is None else w.add("RotaryEmbedding", f"{name}.turned", split_heads, *angles)


def block(w: Writer, x: str, number: int, angles: tuple[str, str], mask: str, step: str | None) -> str:
    """Add one block.

    `step`: where the new keys and values go in the caches; None: there are none.
    """
    name = f"block{number}"
    scale = w.keep(f"{name}.norm.scale", np.ones(WIDTH, np.float32))
    normal = w.add("RMSNormalization", f"{name}.norm", x, scale)
    query = heads(w, normal, f"{name}.query", HEADS, angles)
    keys = heads(w, normal, f"{name}.key", GROUPS, angles)
    values = heads(w, normal, f"{name}.value", GROUPS, None)
    if step is not None:
        keys = w.add("TensorScatter", f"present.{number}.key", f"past_key_values.{number}.key", keys, step)
        values = w.add("TensorScatter", f"present.{number}.value", f"past_key_values.{number}.value", values, step)
    context = w.add("Attention", f"{name}.attention", query, keys, values, mask)
    flat = w.keep(f"{name}.flat.shape", np.array([0, 0, HEADS * DEPTH], np.int64))
    joined = w.add("Reshape", f"{name}.joined", w.add("Transpose", f"{name}.back", context, perm=[0, 2, 1, 3]), flat)
    out = w.product(f"{name}.out", joined, f"{name}.out.weight", HEADS * DEPTH, WIDTH, spread=0.1)
    x = w.add("Add", f"{name}.sum", x, out)
    normal = w.add("RMSNormalization", f"{name}.norm2", x, scale)
    up = w.product(f"{name}.up", normal, f"{name}.up.weight", WIDTH, INNER, spread=WIDTH**-0.5)
    gate = w.product(f"{name}.gate", normal, f"{name}.gate.weight", WIDTH, INNER, spread=WIDTH**-0.5)
    gated = w.add("Mul", f"{name}.gated", w.add("Swish", f"{name}.swish", gate), up)
    down = w.product(f"{name}.down", gated, f"{name}.down.weight", INNER, WIDTH, spread=0.05)
    return w.add("Add", f"{name}.done", x, down)


def make_angles() -> tuple[np.ndarray, np.ndarray]:
    """float32[PLACES, DEPTH / 2] each: cosines and sines of every place."""
    angle = np.arange(PLACES)[:, None] * 100.0 ** (-np.arange(0, DEPTH, 2) / DEPTH)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rows_of_chunk(w: Writer) -> str:
    """The places of the tokens, [length]: those from `step` on."""
    zero, one = w.keep("zero", np.array(0)), w.keep("one", np.array(1))
    count = w.add("Gather", "count", w.add("Shape", "token.shape", "token"), one)
    return w.add("Add", "places.here", "step", w.add("Range", "chunk", zero, count, one))


def decoder(length: int | None, cached: bool, bits: int | None = None) -> onnx.ModelProto:
    """Return the decoder for `length` tokens at once; None: any number.

    `bits`: of weights, None: float.
    """
    w = Writer(bits)
    cos, sin = (w.keep(name, value) for name, value in zip(("cos", "sin"), make_angles()))
    x = w.add("Gather", "embedded", w.drawn("embedding", len(WORDS), WIDTH, spread=1.0), "token")
    if cached:
        here = rows_of_chunk(w)
        place = w.add("Reshape", "place", here, w.keep("row", np.array([1, -1], np.int64)))
        column = w.add("Reshape", "place.column", here, w.keep("column", np.array([-1, 1], np.int64)))
        mask = w.add("LessOrEqual", "seen", w.keep("places", np.arange(PLACES)[None]), column)
    else:
        assert length is not None
        place = w.keep("place", np.arange(length)[None])
        mask = w.keep("seen", np.tri(length, dtype=bool))
    angles = (w.add("Gather", "cos.here", cos, place), w.add("Gather", "sin.here", sin, place))
    for number in range(BLOCKS):
        x = block(w, x, number, angles, mask, "step" if cached else None)
    scale = w.keep("norm.scale", np.ones(WIDTH, np.float32))
    normal = w.add("RMSNormalization", "norm", x, scale)
    w.product("logits", normal, "words", WIDTH, len(WORDS), spread=0.3)
    cache = [1, GROUPS, PLACES, DEPTH]
    kinds = [f"{number}.{kind}" for number in range(BLOCKS) for kind in ("key", "value")] if cached else []
    value = helper.make_tensor_value_info
    size = "length" if length is None else length
    inputs = [value("token", TensorProto.INT64, [1, size])]
    inputs += [value("step", TensorProto.INT64, [1])] if cached else []
    inputs += [value(f"past_key_values.{kind}", TensorProto.FLOAT, cache) for kind in kinds]
    outputs = [value("logits", TensorProto.FLOAT, [1, size, len(WORDS)])]
    outputs += [value(f"present.{kind}", TensorProto.FLOAT, cache) for kind in kinds]
    weights = [numpy_helper.from_array(v, n) for n, v in w.weights.items()]
    graph = helper.make_graph(w.nodes, "step" if cached else "whole", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(decoder(None, True), folder / "step.onnx")
    onnx.save(decoder(SEQUENCE, False), folder / "whole.onnx")


if __name__ == "__main__":
    main()
