"""What a chip can be asked to do: its operations, each with its parameters, bytes, time and limits."""

from toolchain.machine.access import Access
from toolchain.machine.capability import broken_capability, suspects
from toolchain.machine.codes import by_type, code_bytes, table_bytes
from toolchain.machine.demands import Demands, demands
from toolchain.machine.flow import Flow, accesses_at, anywhere, dispatched, op_number, reached
from toolchain.machine.front_end import Index
from toolchain.machine.granules import granule_of, in_granules, out_of_granules
from toolchain.machine.layout import (
    dense_bytes,
    group_bytes,
    in_tiles,
    memory_type,
    out_of_tiles,
    packed_parameters,
    parameter_bytes,
    read_parameters,
    weight_bytes,
)
from toolchain.machine.operation import MachineOp, accesses, columns_of, demand
from toolchain.machine.operations.addend import ADDEND, WithAddend
from toolchain.machine.operations.again import Again
from toolchain.machine.operations.block import Block
from toolchain.machine.operations.call import Call
from toolchain.machine.operations.control import ControlOp
from toolchain.machine.operations.convolution import Convolution
from toolchain.machine.operations.copy import Copy
from toolchain.machine.operations.depthwise import Depthwise
from toolchain.machine.operations.elementwise import Elementwise, ElementwiseKind
from toolchain.machine.operations.emit import Emit, EmitKind
from toolchain.machine.operations.end import End
from toolchain.machine.operations.fill import Fill
from toolchain.machine.operations.load_base import LoadBase
from toolchain.machine.operations.matrix_product import MatrixProduct
from toolchain.machine.operations.pool import Pool, PoolKind
from toolchain.machine.operations.repeat import Repeat
from toolchain.machine.operations.return_ import Return
from toolchain.machine.operations.set_base import SetBase
from toolchain.machine.operations.signal import Signal
from toolchain.machine.operations.softmax import Softmax
from toolchain.machine.operations.table import TABLE_FUNCTIONS, Table, TableFunction, lacking, rated_as
from toolchain.machine.operations.wait import Wait
from toolchain.machine.operations.window import WeightedWindowOp, WindowOp
from toolchain.machine.parameters.description import Need, Parameter
from toolchain.machine.parameters.spaces import Space
from toolchain.machine.strided import Residues, byte_view, moved, overlap, range_text, repeats_itself, residues
from toolchain.machine.traffic import NOTHING, Demand, Traffic

__all__ = [
    "ADDEND",
    "NOTHING",
    "TABLE_FUNCTIONS",
    "Access",
    "Again",
    "Block",
    "Call",
    "ControlOp",
    "Convolution",
    "Copy",
    "Demand",
    "Demands",
    "Depthwise",
    "Elementwise",
    "ElementwiseKind",
    "Emit",
    "EmitKind",
    "End",
    "Fill",
    "Flow",
    "Index",
    "LoadBase",
    "MachineOp",
    "MatrixProduct",
    "Need",
    "Parameter",
    "Pool",
    "PoolKind",
    "Repeat",
    "Residues",
    "Return",
    "SetBase",
    "Signal",
    "Softmax",
    "Space",
    "Table",
    "TableFunction",
    "Traffic",
    "Wait",
    "WeightedWindowOp",
    "WindowOp",
    "WithAddend",
    "accesses",
    "accesses_at",
    "anywhere",
    "broken_capability",
    "by_type",
    "byte_view",
    "code_bytes",
    "columns_of",
    "demand",
    "demands",
    "dense_bytes",
    "dispatched",
    "granule_of",
    "group_bytes",
    "in_granules",
    "in_tiles",
    "lacking",
    "memory_type",
    "moved",
    "op_number",
    "out_of_granules",
    "out_of_tiles",
    "overlap",
    "packed_parameters",
    "parameter_bytes",
    "range_text",
    "rated_as",
    "reached",
    "read_parameters",
    "repeats_itself",
    "residues",
    "suspects",
    "table_bytes",
    "weight_bytes",
]
