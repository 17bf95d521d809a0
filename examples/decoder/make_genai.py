#!/usr/bin/env python3
"""Write the decoder of make_decoder.py as onnxruntime-genai's model builder writes decoders, with the same weights.

    `python examples/decoder/make_genai.py DIR`.

genai.onnx has GroupQueryAttention, which rotates queries and keys and keeps the cache, and SkipSimplifiedLayerNormalization.
It has MatMulNBits of 4 bits, and an If between two tables of angles by the length of the sequence.
The lengths are counted from attention_mask.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from make_decoder import BLOCK, BLOCKS, DEPTH, GROUPS, HEADS, INNER, PLACES, WIDTH, WORDS, drawn, in_blocks, make_angles
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
        output_names = outputs or (f"{name}/output_0",)
        self.nodes.append(helper.make_node(kind, list(inputs), list(output_names), name=name, domain=domain, **attributes))
        return output_names[0]

    def keep(self, name: str, value: np.ndarray) -> str:
        self.weights[name] = value
        return name

    def number(self, value: int, kind: type = np.int64) -> str:
        return self.keep(f"/model/constants/{np.dtype(kind).name}/{value}", np.array(value, kind))

    def product(self, name: str, x: str, weight: np.ndarray, output: str = "") -> str:
        weight_name, outputs = name.removeprefix("/").replace("/", "."), (output,) if output else ()
        if self.bits is None:
            return self.add("MatMul", f"{name}/MatMul", x, self.keep(f"{weight_name}.MatMul.weight", weight), outputs=outputs)
        codes, scales = in_blocks(weight, self.bits)
        a_byte = 8 // self.bits
        split = codes.reshape(*codes.shape[:2], BLOCK // a_byte, a_byte) << (np.arange(a_byte, dtype=np.uint8) * self.bits)
        packed = self.keep(f"{weight_name}.MatMul.weight_Q{self.bits}", split.sum(-1).astype(np.uint8))
        names = packed, self.keep(f"{weight_name}.MatMul.scales", scales)
        shape = {"K": weight.shape[0], "N": weight.shape[1], "bits": self.bits, "block_size": BLOCK}
        return self.add("MatMulNBits", f"{name}/MatMulNBits", x, *names, outputs=outputs, domain="com.microsoft", **shape)

    def norm(self, name: str, x: str, skip: str, last: bool = False) -> tuple[str, str]:
        """Return the normalised tensor, and the sum of both.

        `skip`: "" for none.
        """
        scale = self.keep(f"{name.removeprefix('/').replace('/', '.')}.weight", np.ones(WIDTH, np.float32))
        normal, total = f"{name}/output_0", f"{name}/output_3"
        if not skip:
            self.add("SimplifiedLayerNormalization", name, x, scale, outputs=(normal,), epsilon=EPSILON, axis=-1, stash_type=1)
            return normal, x
        outputs = (normal,) if last else (normal, "", "", total)
        kind = "SkipSimplifiedLayerNormalization"
        self.add(kind, name, x, skip, scale, outputs=outputs, domain="com.microsoft", epsilon=EPSILON)
        return normal, total


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
        angle_tensors = [
            numpy_helper.from_array((factor * value).astype(np.float32), n) for n, value in zip(names, make_angles())
        ]
        nodes = [
            helper.make_node("Constant", [], [n], value=value, name=f"{n}/Constant") for n, value in zip(names, angle_tensors)
        ]
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [PLACES, DEPTH // 2]) for n in names]
        return helper.make_graph(nodes, f"{which}_rotemb_caches_graph", [], ends)

    base = "/model/rotemb_caches_subgraph"
    long = b.add("Greater", f"{base}/Greater", count, b.number(LONG))
    graphs: dict[str, Any] = {"then_branch": branch("large", 1.1), "else_branch": branch("small", 1.0)}
    b.add("If", f"{base}/If", long, outputs=("cos_cache", "sin_cache"), **graphs)


def attention(b: Builder, x: str, number: int, length_inputs: tuple[str, str]) -> str:
    name, block_name = f"/model/layers.{number}/attn", f"block{number}"
    counts = {"query": HEADS, "key": GROUPS, "value": GROUPS}
    weights = {k: drawn(f"{block_name}.{k}.weight", WIDTH, n * DEPTH, spread=WIDTH**-0.5) for k, n in counts.items()}
    if b.packed:
        parts = [b.product(f"{name}/qkv_proj", x, np.concatenate([*weights.values()], 1)), "", ""]
    else:
        parts = [b.product(f"{name}/{kind[0]}_proj", x, weight) for kind, weight in weights.items()]
    caches = [f"past_key_values.{number}.{kind}" for kind in ("key", "value")]
    attention_outputs = (f"{name}/GroupQueryAttention/output_0", *(f"present.{number}.{kind}" for kind in ("key", "value")))
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "scale": DEPTH**-0.5, "do_rotary": 1, "rotary_interleaved": 0}
    inputs = (*parts, *caches, *length_inputs, "cos_cache", "sin_cache")
    context = b.add(
        "GroupQueryAttention",
        f"{name}/GroupQueryAttention",
        *inputs,
        outputs=attention_outputs,
        domain="com.microsoft",
        **attributes,
    )
    return b.product(f"{name}/o_proj", context, drawn(f"{block_name}.out.weight", HEADS * DEPTH, WIDTH, spread=0.1))


def add_gated_mlp(b: Builder, x: str, number: int) -> str:
    name, block_name = f"/model/layers.{number}/mlp", f"block{number}"
    gate = b.product(f"{name}/gate_proj", x, drawn(f"{block_name}.gate.weight", WIDTH, INNER, spread=WIDTH**-0.5))
    up = b.product(f"{name}/up_proj", x, drawn(f"{block_name}.up.weight", WIDTH, INNER, spread=WIDTH**-0.5))
    swish = b.add("Mul", f"{name}/act_fn/Mul", gate, b.add("Sigmoid", f"{name}/act_fn/Sigmoid", gate))
    hidden = b.add("Mul", f"{name}/Mul", swish, up)
    return b.product(f"{name}/down_proj", hidden, drawn(f"{block_name}.down.weight", INNER, WIDTH, spread=0.05))


def genai(bits: int | None = BITS, packed: bool = True) -> onnx.ModelProto:
    """Return the model for any number of tokens at once, and caches of any length."""
    b = Builder(bits, packed)
    *length_inputs, count = lengths(b)
    tables(b, count)
    letters = b.keep("model.embed_tokens.weight", drawn("embedding", len(WORDS), WIDTH, spread=1.0))
    x, skip = b.add("Gather", "/model/embed_tokens/Gather", letters, "input_ids"), ""
    for number in range(BLOCKS):
        normal, x = b.norm(f"/model/layers.{number}/input_layernorm", x, skip)
        context = attention(b, normal, number, (length_inputs[0], length_inputs[1]))
        normal, x = b.norm(f"/model/layers.{number}/post_attention_layernorm", x, context)
        skip = add_gated_mlp(b, normal, number)
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
