"""Read a file into a ModelProto whose operators, opset and external data are known to be usable.

It is the frontend's first step. It inlines the model's own functions, drops the maps around a classifier's outputs, and loads
the weights. Nothing else is changed.

Before OLDEST_OPSET, onnxruntime's oldest too, operands were broadcast by attributes. NORMAL_OPSET is the oldest whose spellings
equal the newest one's; a newer model keeps its own. LATER has operators of the normal form that a model's opset may lack, with
the first opset that has them. Those of EARLY are read by onnxruntime, and written by its optimizer, at any opset. DOMAINS are
read whole, of FOREIGN domains only some operators. By operator, REFUSED has the reason and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from toolchain.errors import first_line
from toolchain.foundation.inference import InferenceError, has_custom_ops, open_model, session_options
from toolchain.frontend.errors import NodeFault, refuse
from toolchain.frontend.expand_contrib import DECOMPOSITIONS as WRITTEN_OUT
from toolchain.frontend.expand_ml import drop_maps
from toolchain.frontend.model_source import ModelFile
from toolchain.input_limits import ONNX_FUNCTIONS, ONNX_NODES
from toolchain.plugin import find_operator

OLDEST_OPSET = 7
NORMAL_OPSET = 21
DOMAINS = ("", "ai.onnx.ml")
EARLY = {"LayerNormalization": 17}
LATER = {
    **EARLY,
    "RMSNormalization": 23,
    "RotaryEmbedding": 23,
    "Attention": 23,
    "TensorScatter": 24,
}


def read_model(file: ModelFile) -> tuple[onnx.ModelProto, bool, list[str]]:
    """Return the model with its external data loaded, whether it was rewritten, and notes on that.

    Rewriting is inlining the model's functions, and dropping maps that a classifier's outputs are wrapped in.
    Raise CompileError when the file, its weights, the opset or an operator is unusable.
    """
    proto = parse(file)
    check_opset(proto, file)
    check_size(proto, file)
    inlined = bool(proto.functions)
    if inlined:
        proto = inline_functions(proto, file)
    check_operators(proto.graph, opset_of(proto))
    notes = drop_maps(proto.graph)
    load_external_data(proto, file.folder)
    return proto, inlined or bool(notes), notes


def model_files(path: Path) -> list[Path]:
    """Return the model's file, then the files of its external data, whether they exist or not.

    Raise CompileError when it is no ONNX model, or data lies outside its folder.
    """
    file = ModelFile(path)
    external = (t for t in tensors_of(parse(file).graph) if external_data_helper.uses_external_data(t))
    return [path, *dict.fromkeys(data_file(t, file.folder) for t in external)]


def parse(file: ModelFile) -> onnx.ModelProto:
    """Return the model as it stands. Raise CompileError where the bytes are no ONNX model with nodes and outputs."""
    data, proto = file.read(), onnx.ModelProto()
    way_out = "export or copy the file again" if file.path is not None else "give the bytes of an .onnx file"
    try:
        proto.ParseFromString(data)
    except Exception as fault:  # protobuf's DecodeError; its class differs between protobuf's backends
        raise refuse(str(file), "is not an ONNX model, or is damaged or cut short", way_out) from fault
    if not proto.HasField("graph") or not proto.opset_import or not is_text(proto.graph):
        raise refuse(str(file), "is not an ONNX model, or is damaged or cut short", way_out)
    if not proto.graph.node:
        raise refuse(str(file), "the graph has no nodes")
    if not proto.graph.output:
        raise refuse(str(file), "the graph has no outputs")
    return proto


def is_text(graph: onnx.GraphProto) -> bool:
    """Return whether every name is UTF-8; protobuf returns other names as bytes."""
    names: list[object] = [graph.name, *(i.name for i in (*graph.initializer, *graph.input, *graph.output))]
    names += [d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute)]
        if not all(map(is_text, graphs_of(node))):
            return False
    return all(isinstance(name, str) for name in names)


def opset_of(proto: onnx.ModelProto) -> int:
    """Return the version of standard ONNX that a model declares; `NORMAL_OPSET` where it declares none."""
    return next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), NORMAL_OPSET)


def check_opset(proto: onnx.ModelProto, file: ModelFile | str) -> None:
    """Raise CompileError where the model's opset is older or newer than what can be read."""
    opset = opset_of(proto)
    if opset < OLDEST_OPSET:
        way_out = f"export with opset {NORMAL_OPSET}, or convert with onnx.version_converter"
        raise refuse(str(file), f"opset {opset} is older than {OLDEST_OPSET}, the oldest that is read", way_out)
    newest = newest_opset() if opset > NORMAL_OPSET else NORMAL_OPSET
    if opset > newest:
        reason = f"opset {opset} is newer than {newest}, the newest that the installed onnx and onnxruntime read"
        raise refuse(str(file), reason, f"export with opset {newest} or older, or upgrade both")


@cache
def newest_opset() -> int:
    """Return the newest opset that both onnx and onnxruntime read. onnxruntime is asked with models of one node, once."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    for opset in range(onnx.defs.onnx_opset_version(), NORMAL_OPSET, -1):
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
        try:
            open_model(model.SerializeToString(), session_options(optimized=False))
        except InferenceError:
            continue
        return opset
    return NORMAL_OPSET


def has_operator(op_type: str) -> bool:
    """Return whether the installed onnx and onnxruntime both read this operator of LATER."""
    return newest_opset() >= LATER[op_type]


def opset_with(op_types: Iterable[str], opset: int) -> int:
    """Return the oldest opset, `opset` or newer, that has these operators of the normal form."""
    return max([opset, *(LATER.get(t, 0) for t in op_types)])


def check_size(proto: onnx.ModelProto, file: ModelFile) -> None:
    """Raise CompileError where the model has too many functions or nodes, counted as if its functions were written out.

    They are counted before that happens, since a few lines of functions can mean any number. A recursive function is refused
    too.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    counts: dict[tuple[str, str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto], within: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in within:
                raise refuse(str(file), f'its function "{node.op_type}" contains itself')
            if key in functions and key not in counts:
                counts[key] = count(functions[key].node, (*within, key))
            total += counts.get(key, 1)
            total += sum(count(g.node, within) for g in graphs_of(node))
        return total

    if len(functions) > ONNX_FUNCTIONS:
        raise refuse(str(file), f"has {len(functions):,} functions, {ONNX_FUNCTIONS:,} are the most")
    nodes = count(proto.graph.node, ())
    if nodes > ONNX_NODES:
        raise refuse(str(file), f"has {nodes:,} nodes with its functions written out, {ONNX_NODES:,} are the most")


def inline_functions(proto: onnx.ModelProto, file: ModelFile) -> onnx.ModelProto:
    """Return the model with its own functions written out in place. Raise CompileError where onnx cannot do so."""
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as fault:
        raise refuse(str(file), f"its local functions cannot be inlined: {first_line(fault)}") from fault


REFUSED = {
    ("com.microsoft", "DynamicQuantizeLSTM"): (
        "is onnxruntime's LSTM on codes whose ranges each run finds",
        'quantize without it (op_types_to_quantize of quantize_dynamic without "LSTM"): in float it is quantized here',
    ),
    ("com.microsoft", "EPContext"): (
        "holds what was compiled already",
        "run the model as it is, with npu-sim or Session, or build the one that it was made from",
    ),
    ("com.microsoft", "QAttention"): (
        "is onnxruntime's attention on codes",
        'quantize without it (op_types_to_quantize without "Attention"): in float it is quantized here',
    ),
    ("com.microsoft", "MatMulBnb4"): (
        "has weights in NF4 or FP4, codes that no machine multiplies by",
        "quantize to MatMulNBits, or give its weights in float: they are quantized here",
    ),
}


WAYS_OUT = (
    "give a plug-in that defines it (--plugin FILE.py), or a library of onnxruntime that runs it on the host "
    "(--custom-ops LIBRARY), or export the model with standard operators only"
)
STANDARD_ONLY = "export the model with standard operators only (no runtime's optimisations, no custom operators)"
FOREIGN = frozenset(domain for domain, _ in WRITTEN_OUT)


def check_operators(graph: onnx.GraphProto, opset: int) -> None:
    """Raise CompileError with every node that no build can take, each way out once."""
    faults = [*operator_faults(graph, opset)]
    if faults:
        raise NodeFault(faults)


def operator_faults(graph: onnx.GraphProto, opset: int) -> Iterator[tuple[str, str]]:
    """Yield a sentence on each node that no build can take, with the way out or ""; nodes of subgraphs are included."""
    for index, node in enumerate(graph.node):
        thing = f"node {node.name or f'{node.op_type}_{index}'} ({node.op_type})"
        domain = "" if node.domain == "ai.onnx" else node.domain
        is_known_operator = domain in DOMAINS and onnx.defs.has(node.op_type, domain)
        if find_operator(domain, node.op_type) is not None:
            continue  # what it lacks is said where its steps are written out
        if (domain, node.op_type) in WRITTEN_OUT and not is_known_operator:
            pass  # its schema is onnxruntime's; what it lacks is said where it is written out
        elif domain not in DOMAINS and domain not in FOREIGN and has_custom_ops():
            continue  # a library may have it; onnxruntime says so where its output types are inferred
        elif domain not in DOMAINS:
            way_out = STANDARD_ONLY if domain in FOREIGN else WAYS_OUT
            unknown = f'is no operator of "{domain}" that is read' if domain in FOREIGN else f'domain "{domain}" is not known'
            reason, way_out = REFUSED.get((domain, node.op_type), (unknown, way_out))
            yield f"{thing}: {reason}", way_out
        elif not is_known_operator:
            yield f"{thing}: is not an ONNX operator", ""
        elif domain == "" and not onnx.defs.has(node.op_type, max(opset, EARLY.get(node.op_type, 0)), domain):
            yield f"{thing}: is not an operator of opset {opset}, which the model declares", ""
        else:
            version = max(opset, EARLY.get(node.op_type, 0)) if domain == "" else onnx.defs.onnx_ml_opset_version()
            yield from attribute_faults(node, thing, version, domain)
        for subgraph in graphs_of(node):
            yield from operator_faults(subgraph, opset)


def attribute_faults(node: onnx.NodeProto, thing: str, opset: int, domain: str) -> Iterator[tuple[str, str]]:
    """Yield a fault for each attribute that is not of the kind its operator takes; later readers rely on the kinds."""
    attribute_schemas = onnx.defs.get_schema(node.op_type, opset, domain).attributes
    for attribute in node.attribute:
        if attribute.name not in attribute_schemas:
            continue
        expected_type: Any = attribute_schemas[attribute.name].type  # an enum, whatever its stub says
        if attribute.type != expected_type.value:
            kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
            yield f'{thing}: its attribute "{attribute.name}" is {kind}, {node.op_type} takes {expected_type.name}', ""


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that may hold external data: initializers and tensor attributes, in subgraphs too."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
        for subgraph in graphs_of(node):
            yield from tensors_of(subgraph)


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that are attributes of the node."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]


def sparse_weights_of(graph: onnx.GraphProto) -> Iterator[onnx.SparseTensorProto]:
    """Yield every sparse initializer, in subgraphs too."""
    yield from graph.sparse_initializer
    for node in graph.node:
        for subgraph in graphs_of(node):
            yield from sparse_weights_of(subgraph)


def data_location(tensor: onnx.TensorProto) -> str:
    """Return the file of a tensor's external data, relative to the model's folder; "" where it has none."""
    return {e.key: e.value for e in tensor.external_data}.get("location", "")


def data_file(tensor: onnx.TensorProto, base: Path | None) -> Path:
    """Return the file of a tensor's external data, whether it exists or not. Raise CompileError where it is outside `base`.

    `base`: the model's folder; None: the model is in memory, so that its weights should be too, which raises CompileError.
    """
    location = data_location(tensor)
    if base is None:
        way_out = "read the model with onnx.load(path), which loads its weights, or give its path"
        raise refuse(f"weight {tensor.name}", f'its external data "{location}" is not in memory', way_out)
    file = None if "\0" in location else (base / location).resolve()
    if not location or file is None or not file.is_relative_to(base):
        raise refuse(f"weight {tensor.name}", f'its external data "{location}" is outside the folder of the model')
    return file


def load_external_data(proto: onnx.ModelProto, base: Path | None) -> None:
    """Load external weights into the model, in place. Raise CompileError, with its name, for a missing or short file or a
    sparse weight.

    `base`: the model's folder; None: the model is in memory, and so must its weights be.
    """
    sparse = next(sparse_weights_of(proto.graph), None)
    if sparse is not None:
        raise refuse(f"weight {sparse.values.name}", "sparse initializers are not supported", "export dense weights")
    for tensor in tensors_of(proto.graph):
        if not external_data_helper.uses_external_data(tensor):
            continue
        location = data_location(tensor)
        if not data_file(tensor, base).is_file():
            way_out = "copy it beside the model, or export with the weights inside"
            raise refuse(f"weight {tensor.name}", f'its external data file "{location}" is missing in {base}', way_out)
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(base))
        except Exception as fault:
            raise refuse(f"weight {tensor.name}", f'external data "{location}": {first_line(fault)}') from fault
        check_length(tensor, location)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def check_length(tensor: onnx.TensorProto, location: str) -> None:
    """Raise CompileError where a tensor's data does not have the bytes of its shape and type; packed types are not checked."""
    from toolchain.frontend.convert import dtype_name, numpy_dtype

    dtype = numpy_dtype(dtype_name(tensor.data_type))
    if dtype.name[-1:] == "4" or (dtype.name[-1:] == "2" and dtype.itemsize == 1):
        return  # packed types: two or four elements in a byte
    expected_bytes = dtype.itemsize
    for d in tensor.dims:
        expected_bytes *= d
    if len(tensor.raw_data) != expected_bytes:
        reason = f'external data "{location}" has {len(tensor.raw_data)} bytes for it, {expected_bytes} are needed'
        raise refuse(f"weight {tensor.name}", reason, "copy the file again; it may be cut short")
