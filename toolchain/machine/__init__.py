"""The machine operations of a chip, with the parameters, touched bytes, time and limits of each, and the timing of a
program.

Compiler and simulator share this package, and it imports nothing of either. A chip (`toolchain.hw`) says what its
machine has.
"""

from toolchain.machine.access import Access
from toolchain.machine.access_overlap import Residues, byte_view, overlap, overlaps_itself, range_text, rebase_access, residues
from toolchain.machine.capability import find_unsupported, may_be_unsupported
from toolchain.machine.channel_blocks import granule_of, in_granules, out_of_granules
from toolchain.machine.columns import by_type, code_bytes, table_bytes
from toolchain.machine.demand_columns import Demands, demands
from toolchain.machine.dispatch import InstructionStream, accesses_at, anywhere, dispatch_program, op_number, resolve_addresses
from toolchain.machine.front_end import MemoryIndex
from toolchain.machine.layout import (
    dense_bytes,
    group_bytes,
    in_tiles,
    memory_type,
    out_of_tiles,
    pack_parameters,
    parameter_bytes,
    read_parameters,
    weight_bytes,
)
from toolchain.machine.operation import MachineOp, OperationTable, accesses, columns_of, demand, tables_by_unit
from toolchain.machine.operations.addend import ADDEND, WithAddend
from toolchain.machine.operations.control import BlockBegin, BlockEnd, Call, ControlOp, Repeat, RepeatEnd, SetBase
from toolchain.machine.operations.convolution import Convolution
from toolchain.machine.operations.copy import Copy
from toolchain.machine.operations.depthwise import Depthwise
from toolchain.machine.operations.elementwise import Elementwise, ElementwiseKind
from toolchain.machine.operations.emit import Emit, EmitKind
from toolchain.machine.operations.fill import Fill
from toolchain.machine.operations.load_base import LoadBase
from toolchain.machine.operations.matrix_product import MatrixProduct
from toolchain.machine.operations.pool import Pool, PoolKind
from toolchain.machine.operations.softmax import Softmax
from toolchain.machine.operations.synchronisation import End, Signal, Wait
from toolchain.machine.operations.table import TABLE_FUNCTIONS, Table, TableFunction, find_function_rate, find_missing_table
from toolchain.machine.operations.window import WeightedWindowOp, WindowOp
from toolchain.machine.parameters.description import Need, Parameter
from toolchain.machine.parameters.spaces import Space
from toolchain.machine.traffic import NO_DEMAND, Demand, Traffic

__all__ = [
    "ADDEND",
    "NO_DEMAND",
    "TABLE_FUNCTIONS",
    "Access",
    "BlockBegin",
    "BlockEnd",
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
    "InstructionStream",
    "LoadBase",
    "MachineOp",
    "MatrixProduct",
    "MemoryIndex",
    "Need",
    "OperationTable",
    "Parameter",
    "Pool",
    "PoolKind",
    "Repeat",
    "RepeatEnd",
    "Residues",
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
    "by_type",
    "byte_view",
    "code_bytes",
    "columns_of",
    "demand",
    "demands",
    "dense_bytes",
    "dispatch_program",
    "find_function_rate",
    "find_missing_table",
    "find_unsupported",
    "granule_of",
    "group_bytes",
    "in_granules",
    "in_tiles",
    "may_be_unsupported",
    "memory_type",
    "op_number",
    "out_of_granules",
    "out_of_tiles",
    "overlap",
    "overlaps_itself",
    "pack_parameters",
    "parameter_bytes",
    "range_text",
    "read_parameters",
    "rebase_access",
    "residues",
    "resolve_addresses",
    "table_bytes",
    "tables_by_unit",
    "weight_bytes",
]
