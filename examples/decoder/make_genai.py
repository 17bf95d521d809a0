#!/usr/bin/env python3
"""Writes the decoder of make_decoder.py as onnxruntime-genai's model builder writes decoders, with the same weights.

    python examples/decoder/make_genai.py DIR

genai.onnx has GroupQueryAttention, which turns queries and keys and keeps the cache, SkipSimplifiedLayerNormalization,
MatMulNBits of 4 bits, an If between two tables of angles by the length of the sequence, and lengths counted from attention_mask.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from make_decoder import BLOCK, BLOCKS, DEPTH, GROUPS, HEADS, INNER, PLACES, WIDTH, WORDS, drawn, in_blocks, turns
from onnx import TensorProto, helper, numpy_helper

BITS = 4  # of weights
LONG = 4096  # from this many places on, other angles
EPSILON = 1e-5


class Builder:
    """Names as genai's builder gives them: /model/layers.0/attn/qkv_proj/MatMul. bits: None: products are float. packed: queries,
    keys and values are made by one product."""

    def __init__(self, bits: int | None, packed: bool) -> None:
        self.bits, self.packed = bits, packed
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def add(self, kind: str, name: str, *inputs: str, outputs: tuple[str, ...] = (), domain: str = "", **attributes: Any) -> str:
        made = outputs or (f"{name}/output_0",)
        self.nodes.append(helper.make_node(kind, list(inputs), list(made), name=name, domain=domain, **attributes))
        return made[0]

    def keep(self, name: str, value: np.ndarray) -> str:
        self.weights[name] = value
        return name

    def number(self, value: int, kind: type = np.int64) -> str:
        return self.keep(f"/model/constants/{np.dtype(kind).name}/{value}", np.array(value, kind))

    def product(self, name: str, x: str, weight: np.ndarray, output: str = "") -> str:
        kept, outputs = name.removeprefix("/").replace("/", "."), (output,) if output else ()
        if self.bits is None:
            return self.add("MatMul", f"{name}/MatMul", x, self.keep(f"{kept}.MatMul.weight", weight), outputs=outputs)
        codes, scales = in_blocks(weight, self.bits)
        a_byte = 8 // self.bits
        split = codes.reshape(*codes.shape[:2], BLOCK // a_byte, a_byte) << (np.arange(a_byte, dtype=np.uint8) * self.bits)
        packed = self.keep(f"{kept}.MatMul.weight_Q{self.bits}", split.sum(-1).astype(np.uint8))
        names = packed, self.keep(f"{kept}.MatMul.scales", scales)
        shape = {"K": weight.shape[0], "N": weight.shape[1], "bits": self.bits, "block_size": BLOCK}
        return self.add("MatMulNBits", f"{name}/MatMulNBits", x, *names, outputs=outputs, domain="com.microsoft", **shape)

    def norm(self, name: str, x: str, skip: str, last: bool = False) -> tuple[str, str]:
        """What is normalised, and the sum of both; skip: "" for none."""
        scale = self.keep(f"{name.removeprefix('/').replace('/', '.')}.weight", np.ones(WIDTH, np.float32))
        made, total = f"{name}/output_0", f"{name}/output_3"
        if not skip:
            self.add("SimplifiedLayerNormalization", name, x, scale, outputs=(made,), epsilon=EPSILON, axis=-1, stash_type=1)
            return made, x
        outputs = (made,) if last else (made, "", "", total)
        kind = "SkipSimplifiedLayerNormalization"
        self.add(kind, name, x, skip, scale, outputs=outputs, domain="com.microsoft", epsilon=EPSILON)
        return made, total


def lengths(b: Builder) -> tuple[str, str, str]:
    """seqlens_k, total_sequence_length, and the latter before its Cast: from the mask's sum and its shape."""
    base = "/model/attn_mask_reformat/attn_mask_subgraph"
    total = b.add("ReduceSum", f"{base}/ReduceSum", "attention_mask", b.keep("/model/constants/1d/1", np.array([1])))
    last = b.add("Sub", f"{base}/Sub", total, b.keep("/model/constants/1d/1", np.array([1])))
    seqlens = b.add("Cast", f"{base}/Sub/Cast", last, to=TensorProto.INT32)
    count = b.add("Gather", f"{base}/Gather", b.add("Shape", f"{base}/Shape", "attention_mask"), b.number(1), axis=0)
    return seqlens, b.add("Cast", f"{base}/Gather/Cast", count, to=TensorProto.INT32), count


def tables(b: Builder, count: str) -> None:
    """cos_cache and sin_cache, by the length of the sequence."""

    def branch(which: str, factor: float) -> onnx.GraphProto:
        names = [f"{kind}_cache_{which}" for kind in ("cos", "sin")]
        made = [numpy_helper.from_array((factor * value).astype(np.float32), n) for n, value in zip(names, turns())]
        nodes = [helper.make_node("Constant", [], [n], value=value, name=f"{n}/Constant") for n, value in zip(names, made)]
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [PLACES, DEPTH // 2]) for n in names]
        return helper.make_graph(nodes, f"{which}_rotemb_caches_graph", [], ends)

    base = "/model/rotemb_caches_subgraph"
    long = b.add("Greater", f"{base}/Greater", count, b.number(LONG))
    graphs: dict[str, Any] = {"then_branch": branch("large", 1.1), "else_branch": branch("small", 1.0)}
    b.add("If", f"{base}/If", long, outputs=("cos_cache", "sin_cache"), **graphs)


def attention(b: Builder, x: str, number: int, known: tuple[str, str]) -> str:
    name, own = f"/model/layers.{number}/attn", f"block{number}"
    counts = {"query": HEADS, "key": GROUPS, "value": GROUPS}
    weights = {k: drawn(f"{own}.{k}.weight", WIDTH, n * DEPTH, spread=WIDTH**-0.5) for k, n in counts.items()}
    if b.packed:
        parts = [b.product(f"{name}/qkv_proj", x, np.concatenate([*weights.values()], 1)), "", ""]
    else:
        parts = [b.product(f"{name}/{kind[0]}_proj", x, weight) for kind, weight in weights.items()]
    caches = [f"past_key_values.{number}.{kind}" for kind in ("key", "value")]
    made = (f"{name}/GroupQueryAttention/output_0", *(f"present.{number}.{kind}" for kind in ("key", "value")))
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "scale": DEPTH**-0.5, "do_rotary": 1, "rotary_interleaved": 0}
    inputs = (*parts, *caches, *known, "cos_cache", "sin_cache")
    seen = b.add(
        "GroupQueryAttention", f"{name}/GroupQueryAttention", *inputs, outputs=made, domain="com.microsoft", **attributes
    )
    return b.product(f"{name}/o_proj", seen, drawn(f"{own}.out.weight", HEADS * DEPTH, WIDTH, spread=0.1))


def gated(b: Builder, x: str, number: int) -> str:
    name, own = f"/model/layers.{number}/mlp", f"block{number}"
    gate = b.product(f"{name}/gate_proj", x, drawn(f"{own}.gate.weight", WIDTH, INNER, spread=WIDTH**-0.5))
    up = b.product(f"{name}/up_proj", x, drawn(f"{own}.up.weight", WIDTH, INNER, spread=WIDTH**-0.5))
    swish = b.add("Mul", f"{name}/act_fn/Mul", gate, b.add("Sigmoid", f"{name}/act_fn/Sigmoid", gate))
    made = b.add("Mul", f"{name}/Mul", swish, up)
    return b.product(f"{name}/down_proj", made, drawn(f"{own}.down.weight", INNER, WIDTH, spread=0.05))


def genai(bits: int | None = BITS, packed: bool = True) -> onnx.ModelProto:
    """Of any number of tokens at once, and caches of any length."""
    b = Builder(bits, packed)
    *known, count = lengths(b)
    tables(b, count)
    letters = b.keep("model.embed_tokens.weight", drawn("embedding", len(WORDS), WIDTH, spread=1.0))
    x, skip = b.add("Gather", "/model/embed_tokens/Gather", letters, "input_ids"), ""
    for number in range(BLOCKS):
        normal, x = b.norm(f"/model/layers.{number}/input_layernorm", x, skip)
        seen = attention(b, normal, number, (known[0], known[1]))
        normal, x = b.norm(f"/model/layers.{number}/post_attention_layernorm", x, seen)
        skip = gated(b, normal, number)
    normal, _ = b.norm(f"/model/layers.{BLOCKS}/final_norm_layernorm", x, skip, last=True)
    b.product("/lm_head", normal, drawn("words", WIDTH, len(WORDS), spread=0.3), "logits")
    return in_a_model(b)


def in_a_model(b: Builder) -> onnx.ModelProto:
    value, long, real = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
    kinds = [f"{number}.{kind}" for number in range(BLOCKS) for kind in ("key", "value")]
    inputs = [value("input_ids", long, ["batch_size", "sequence_length"])]
    inputs += [value("attention_mask", long, ["batch_size", "total_sequence_length"])]
    outputs = [value("logits", real, ["batch_size", "sequence_length", len(WORDS)])]
    inputs += [value(f"past_key_values.{kind}", real, ["batch_size", GROUPS, "past_sequence_length", DEPTH]) for kind in kinds]
    outputs += [value(f"present.{kind}", real, ["batch_size", GROUPS, "total_sequence_length", DEPTH]) for kind in kinds]
    weights = [numpy_helper.from_array(v, n) for n, v in b.weights.items()]
    graph = helper.make_graph(b.nodes, "main_graph", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(genai(), folder / "genai.onnx")


if __name__ == "__main__":
    main()
