"""Expand com.microsoft's attention operators, as onnxruntime's tools and onnxruntime-genai write them, into ONNX's own.

MultiHeadAttention, Attention and RotaryEmbedding are of onnxruntime's tools. GroupQueryAttention is of onnxruntime-genai.
Each function raises NodeFault for forms that it cannot expand.
Source: onnxruntime docs/ContribOperators.md. There, rows of a cache that no token has reached are unspecified.
Here they keep their past values, so that a cache may stay in one place from run to run.

Indices of GroupQueryAttention's inputs are _QUERY to _QUERY_LENGTHS. Inputs of _REFUSED, by index, are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.expansion_builder import MASKED, ExpansionBuilder

_WRITTEN_OUT = "export it written out, with standard operators"
_QUERY, _KEY, _VALUE, _PAST, _LENGTHS, _TOTAL, _COS, _PLACES, _BIAS, _QUERY_LENGTHS = 0, 1, 2, 3, 5, 6, 7, 9, 10, 16
_REFUSED = {
    11: "has sinks (head_sink)",
    12: "keeps its cache in codes (k_scale)",
    13: "keeps its cache in codes (v_scale)",
    14: "normalizes its queries (q_norm_weight)",
    15: "normalizes its keys (k_norm_weight)",
}


def rotary_embedding(w: ExpansionBuilder) -> None:
    """Expand RotaryEmbedding. Its inputs are input, position_ids, cos_cache, sin_cache.

    position_ids has a place for each token, or that of the first.
    """
    shape, at, angles, _ = w.shape(0, 3, 4), w.shape(1, 1, 2), w.shape(2, 2), w.shape(3, 2)
    (x, places, cos, sin), depth = w.node.inputs[:4], w.attribute("rotary_embedding_dim", 0)
    if w.attribute("is_packed_batching", 0) or w.attribute("scale", 1.0) != 1:
        raise refuse_node(w.node, "packs its batch, or scales (is_packed_batching, scale)", _WRITTEN_OUT)
    batch, length = shape[0], shape[-2]
    if len(at) == 1:
        count = w.constant("chunk", np.tile(np.arange(length, dtype=np.int64), (batch, 1)))
        places = w.add("Add", count, places, what="places")
    heads = w.attribute("num_heads", 0) or (shape[2] // (2 * angles[1]) if len(shape) == 3 else 0)
    attributes: dict[str, Any] = {"interleaved": w.attribute("interleaved", 0), "num_heads": heads, "rotary_embedding_dim": depth}
    w.add("RotaryEmbedding", x, cos, sin, places, output=0, **attributes)


def multi_head_attention(w: ExpansionBuilder) -> None:
    """Expand MultiHeadAttention.

    Its inputs are query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value. The first three must have 3
    dimensions. Packed or transposed ones, caches of beams, and scores as an output are refused.
    """
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
    """Expand Attention, whose inputs are input, weights, bias, mask_index and, at place 5, attention_bias.

    A past, further outputs and do_rotary are refused; a mask must have 2 dimensions. One product makes queries, keys and values.
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


def group_query_attention(w: ExpansionBuilder) -> None:
    """Expand GroupQueryAttention into Attention and what updates its caches, with RotaryEmbedding where do_rotary asks for it.

    New rows enter a cache by TensorScatter; a first chunk is the cache, or goes in front of its rest by Concat.
    Its inputs are query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos, sin, position_ids, bias,
    and at place 16 the lengths of queries. Past keys and values are caches with a place for each token.
    """
    _check_grouped(w)
    heads, groups = w.attribute("num_heads", 0), w.attribute("kv_num_heads", 0)
    query, key, value = _split_heads(w, heads, groups)
    length = w.types[w.node.inputs[_QUERY]].shape[1]
    first = _is_first(w, length)
    past = w.constant("none", np.zeros(w.types[w.node.inputs[_QUERY]].shape[0], np.int64)) if first else _past_length(w, length)
    places = w.add("Add", _column(w, past, "past, as column"), w.constant("chunk", np.arange(length)[None]), what="places")
    if w.attribute("do_rotary", 0):
        query, key = (_rotate(w, x, places, name) for x, name in ((query, "query"), (key, "key")))
    keys, values = (_update_cache(w, x, past, i, first) for i, x in enumerate((key, value)))
    numbers = {"scale": w.attribute("scale", 0.0), "softcap": w.attribute("softcap", 0.0)}
    attributes = {name: number for name, number in numbers.items() if number}
    attention_output = w.add("Attention", query, keys, values, _causal_mask(w, places, _places_of(w, length)), **attributes)
    w.join_heads(attention_output)


def _check_grouped(w: ExpansionBuilder) -> None:
    """Raise NodeFault with everything about a GroupQueryAttention that cannot be expanded."""
    heads, groups = w.attribute("num_heads", 0), w.attribute("kv_num_heads", 0)
    faults = [reason for index, reason in _REFUSED.items() if w.input(index)]
    faults += ["is of windows that it moves itself (sliding_window_cache)"] if w.attribute("sliding_window_cache", 0) else []
    faults += ["has sinks (smooth_softmax)"] if w.attribute("smooth_softmax", 0) > 0 else []
    faults += ["gives its scores out"] if any(w.node.outputs[3:]) else []
    if heads < 1 or groups < 1 or heads % groups:
        faults.append(f"has num_heads={heads}, kv_num_heads={groups}; the first must be a multiple of the second")
    if any(not w.input(i) for i in (_LENGTHS, _TOTAL)):
        faults.append("lacks seqlens_k or total_sequence_length")
    if bool(w.input(_KEY)) != bool(w.input(_VALUE)) or bool(w.input(_PAST)) != bool(w.input(_PAST + 1)):
        faults.append("has keys without values, or values without keys")
    if w.attribute("do_rotary", 0) and not (w.input(_COS) and w.input(_COS + 1)):
        faults.append("turns by its places (do_rotary) and has no cos_cache or sin_cache")
    if faults:
        raise refuse_node(w.node, "; ".join(faults), "export it written out, with standard operators")
    w.shape(_QUERY, 3)
    for index, rank in ((_KEY, 3), (_VALUE, 3), (_PAST, 4), (_PAST + 1, 4), (_COS, 2), (_COS + 1, 2)):
        _ = w.shape(index, rank) if w.input(index) else ()


def _split_heads(w: ExpansionBuilder, heads: int, groups: int) -> list[str]:
    """Return query, key and value as [batch, heads, length, depth]; they may come packed in one input."""
    counts, names = (heads, groups, groups), list(w.node.inputs[:3])
    if not w.input(_KEY):
        packed_width = w.types[names[0]].shape[2]
        depth = packed_width // (heads + 2 * groups)
        ends = np.cumsum([0, *(n * depth for n in counts)])
        names = [w.cut(f"part {i}", names[0], a, b, 2) for i, (a, b) in enumerate(pairwise(ends))]
    return [w.heads(what, name, count) for name, count, what in zip(names, counts, ("query", "key", "value"))]


def _past(w: ExpansionBuilder) -> int:
    """Return the number of places of the cache that the node is given; 0: it is given none."""
    return w.types[w.input(_PAST)].shape[2] if w.input(_PAST) else 0


def _total(w: ExpansionBuilder) -> int | None:
    """Return the total sequence length, or None where it is known only at run time."""
    value = w.known_constants.get(w.input(_TOTAL))
    return None if value is None else int(value.reshape(-1)[0])


def _is_first(w: ExpansionBuilder, length: int) -> bool:
    """Return whether the chunk is the beginning, which onnxruntime recognises by equal lengths."""
    return not _past(w) or (not w.input(_QUERY_LENGTHS) and _total(w) == length)


def _places_of(w: ExpansionBuilder, length: int) -> int:
    """Return the number of places in the cache after the node."""
    return max(_past(w), _total(w) or 0, length)


def _past_length(w: ExpansionBuilder, length: int) -> str:
    """Return int64[batch]: the number of tokens in the cache before this chunk."""
    one = w.constant("one", np.ones(1, np.int64))
    last = w.add("Reshape", w.node.inputs[_LENGTHS], w.constant("row", np.array([-1], np.int64)), what="lengths")
    lengths = w.add("Add", w.add("Cast", last, what="last", to=TensorProto.INT64), one, what="total")
    query_lengths = w.constant("length", np.full(1, length, np.int64))
    if w.input(_QUERY_LENGTHS):
        query_lengths = w.add("Cast", w.input(_QUERY_LENGTHS), what="given", to=TensorProto.INT64)
    before = w.add("Sub", lengths, query_lengths, what="before")
    return w.add("Max", before, w.constant("least place", np.zeros(1, np.int64)), what="past")  # rows are more than tokens


def _column(w: ExpansionBuilder, x: str, what: str) -> str:
    return w.add("Reshape", x, w.constant(f"{what}/shape", np.array([-1, 1], np.int64)), what=what)


def _rotate(w: ExpansionBuilder, x: str, places: str, what: str) -> str:
    cos, sin = w.node.inputs[_COS : _COS + 2]
    depth = 2 * w.types[cos].shape[1]  # a part of each head's, where it is less
    attributes: dict[str, Any] = {"interleaved": w.attribute("rotary_interleaved", 0), "rotary_embedding_dim": depth}
    return w.add("RotaryEmbedding", x, cos, sin, w.input(_PLACES) or places, what=f"{what}/turned", **attributes)


def _update_cache(w: ExpansionBuilder, new: str, past: str, index: int, first: bool) -> str:
    """Return the cache after the node: the past with the new rows. `index`: 0 for keys, 1 for values."""
    what, length = ("key", "value")[index], w.types[w.node.inputs[_QUERY]].shape[1]
    name, places = w.input(_PAST + index), _past(w)
    if not places or (first and places <= length):
        return w.add("Identity", new, what=f"{what}/present", output=1 + index)
    if first:
        return w.add(
            "Concat", new, w.cut(f"{what}/rest", name, length, places, 2), what=f"{what}/present", output=1 + index, axis=2
        )
    more = _places_of(w, length) - places
    if more:
        kind = w.types[name]
        room = np.zeros((*kind.shape[:2], more, kind.shape[3]), kind.dtype)
        name = w.add("Concat", name, w.constant(f"{what}/zeros", room), what=f"{what}/room", axis=2)
    return w.add("TensorScatter", name, new, past, what=f"{what}/present", output=1 + index, axis=2)


def _causal_mask(w: ExpansionBuilder, places: str, count: int) -> str:
    """Return which keys each token sees, bool[batch, 1, length, count] or [length, count] for one sample.

    With a bias input it is what is added to scores instead.
    """
    samples = w.types[w.node.inputs[_QUERY]].shape[0]
    here = w.add("Reshape", places, w.constant("mask/rows", _leading(samples, -1, 1)), what="places of rows")
    positions = w.constant("mask/places", np.arange(count))
    last = here
    if not w.attribute("causal", 1):
        lengths = w.add("Cast", w.node.inputs[_LENGTHS], what="mask/lengths", to=TensorProto.INT64)
        last = w.add("Reshape", lengths, w.constant("mask/row", _leading(samples, 1, 1)), what="mask/last")
    visible_keys = w.add("LessOrEqual", positions, last, what="seen")
    window = w.attribute("local_window_size", -1)
    if window > 0:
        oldest = w.add("Sub", here, w.constant("window", np.array(window, np.int64)), what="oldest")
        visible_keys = w.add("And", visible_keys, w.add("Greater", positions, oldest, what="not too old"), what="near")
    if not w.input(_BIAS):
        return visible_keys
    least = w.constant("least", np.array(MASKED, w.types[w.input(_BIAS)].dtype))
    return w.add("Where", visible_keys, w.input(_BIAS), least, what="bias")


def _leading(samples: int, *shape: int) -> np.ndarray:
    """Return a shape with a leading batch and head dimension; without both for one sample.

    A matrix is no feature map to the chip.
    """
    return np.array(shape if samples == 1 else (samples, 1, *shape), np.int64)
