"""com.microsoft's MultiHeadAttention, Attention and RotaryEmbedding, as onnxruntime's tools write transformers: ONNX's own.

Source: onnxruntime docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.expansion_builder import MASKED, ExpansionBuilder

_WRITTEN_OUT = "export it written out, with standard operators"


def rotary_embedding(w: ExpansionBuilder) -> None:
    """input, position_ids (of each token, or of the first), cos_cache, sin_cache."""
    shape, at, angles, _ = w.shape(0, 3, 4), w.shape(1, 1, 2), w.shape(2, 2), w.shape(3, 2)
    (x, places, cos, sin), depth = w.node.inputs[:4], w.attribute("rotary_embedding_dim", 0)
    if w.attribute("is_packed_batching", 0) or w.attribute("scale", 1.0) != 1:
        raise refuse_node(w.node, "packs its batch, or scales (is_packed_batching, scale)", _WRITTEN_OUT)
    batch, length = shape[0], shape[-2]
    if len(at) == 1:
        count = w.constant("chunk", np.tile(np.arange(length, dtype=np.int64), (batch, 1)))
        places = w.add("Add", count, places, what="places")
    heads = w.attribute("num_heads", 0) or (shape[2] // (2 * angles[1]) if len(shape) == 3 else 0)
    attributes = {"interleaved": w.attribute("interleaved", 0), "num_heads": heads, "rotary_embedding_dim": depth}
    w.add("RotaryEmbedding", x, cos, sin, places, output=0, **attributes)


def multi_head_attention(w: ExpansionBuilder) -> None:
    """query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value."""
    names = [w.input(i) for i in range(3)]
    if not all(names) or any(len(w.types[n].shape) != 3 for n in names):
        raise refuse_node(w.node, "has packed or transposed keys or values", _WRITTEN_OUT)
    if any(w.input(i) for i in (8, 9)) or any(w.node.outputs[3:]):
        raise refuse_node(w.node, "shares its cache between beams, or gives its scores out", _WRITTEN_OUT)
    if w.input(3):
        ends = np.cumsum([0, *(w.types[n].shape[2] for n in names)])
        bias = [w.cut(f"bias {i}", w.input(3), int(ends[i]), int(ends[i + 1]), 0) for i in range(3)]
        names = [w.add("Add", name, part, what=f"sum {i}") for i, (name, part) in enumerate(zip(names, bias))]
    _attend(w, names, (4, 5), [w.input(6), w.input(7)])


def attention(w: ExpansionBuilder) -> None:
    """Expand Attention, whose inputs are input, weights, bias, mask_index, past, attention_bias.

    One product makes queries, keys and values.
    """
    if w.input(4) or w.input(6) or w.attribute("do_rotary", 0) or any(w.node.outputs[1:]):
        raise refuse_node(w.node, "has a cache of keys and values together, or turns them (past, do_rotary)", _WRITTEN_OUT)
    _, (_, width) = w.shape(0, 3), w.shape(1, 2)
    sizes = w.attribute("qkv_hidden_sizes", ()) or (width // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != width or min(sizes) < 1:
        raise refuse_node(w.node, f"has qkv_hidden_sizes={list(sizes)}; three are needed, together {width}")
    packed_product = w.add("MatMul", *w.node.inputs[:2], what="product")
    if w.input(2):
        packed_product = w.add("Add", packed_product, w.input(2), what="product and bias")
    ends = np.cumsum([0, *sizes])
    parts = [w.cut(f"part {i}", packed_product, int(ends[i]), int(ends[i + 1]), 2) for i in range(3)]
    _attend(w, parts, (3, 5), ["", ""])


def _attend(w: ExpansionBuilder, names: Sequence[str], masks: tuple[int, int], past: Sequence[str]) -> None:
    """Add the attention of query, key and value.

    `names`: query, key and value, each [batch, length, heads depth].
    `masks`: indices of the inputs that say which keys count and what is added to scores.
    `past`: past keys and values, "" for none.
    """
    heads = w.attribute("num_heads", 0)
    if heads < 1:
        raise refuse_node(w.node, f"has num_heads={heads}; 1 or more are needed")
    query, *keys_values = (w.heads(what, name, heads) for name, what in zip(names, ("query", "key", "value")))
    for i, name in enumerate(past):
        if name:
            keys_values[i] = w.add("Concat", name, keys_values[i], what=f"present {i}", output=1 + i, axis=2)
        elif w.has_output(1 + i):
            keys_values[i] = w.add("Identity", keys_values[i], what=f"present {i}", output=1 + i)
    before = w.shape(w.node.inputs.index(past[0]), 4)[2] if past[0] else 0
    mask = _mask(w, masks, before)
    scale = {"scale": w.attribute("scale", 0.0)} if w.attribute("scale", 0.0) else {}
    attention_output = w.add("Attention", query, *keys_values, *([mask] if mask else []), **scale)
    w.join_heads(attention_output)


def _mask(w: ExpansionBuilder, inputs: tuple[int, int], before: int) -> str:
    """Return the mask: the tensor added to scores, or the visible keys, "" for all."""
    padding, bias = (w.input(i) for i in inputs)
    length = w.types[w.node.inputs[0]].shape[1]
    visible_keys = ""
    if padding:
        if len(w.types[padding].shape) != 2:
            raise refuse_node(
                w.node, f"has a mask of {len(w.types[padding].shape)} dimensions; those of 2 are read", _WRITTEN_OUT
            )
        rows = w.add("Cast", padding, what="mask/bool", to=TensorProto.BOOL)
        visible_keys = w.add("Unsqueeze", rows, w.constant("mask/axes", np.array([1, 2], np.int64)), what="mask/rows")
    if w.attribute("unidirectional", 0):
        earlier = w.constant("earlier", np.tri(length, before + length, before, dtype=bool))
        visible_keys = w.add("And", visible_keys, earlier, what="mask/both") if visible_keys else earlier
    if not bias or not visible_keys:
        return bias or visible_keys
    return w.add("Where", visible_keys, bias, w.constant("least", np.array(MASKED, w.types[bias].dtype)), what="mask/bias")
