"""What one operation may ask of this machine: sizes, operand types, functions, limits, accumulators."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.hw.chip import Chip, ConvolutionLimits
from toolchain.isa.operations import (
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    ElementwiseKind,
    End,
    Fill,
    MachineOp,
    MatrixProduct,
    Pool,
    PoolKind,
    Signal,
    Table,
    Wait,
    WeightedWindowOp,
    WindowOp,
    untold,
)

_WINDOW_SIZES = (
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "dilation_height",
    "dilation_width",
    "output_height",
    "output_width",
)
_SIZES: dict[type[MachineOp], tuple[str, ...]] = {
    Copy: ("inner_bytes", "count0", "count1", "count2"),
    Fill: ("inner_elements", "count0", "count1", "count2"),
    Convolution: (*_WINDOW_SIZES, "input_channels", "output_channels"),
    Depthwise: (*_WINDOW_SIZES, "channels"),
    MatrixProduct: ("rows", "inner", "columns"),
    Pool: (*_WINDOW_SIZES, "channels"),
    Elementwise: ("height", "width", "channels"),
    Table: ("height", "width", "channels"),
    Signal: (),
    Wait: (),
    End: (),
}
_KINDS = {kind: kind.name.lower() for kind in ElementwiseKind}


def broken_capability(op: MachineOp, chip: Chip) -> str | None:
    """The reason why this machine cannot run the operation, or None."""
    if type(op) not in _SIZES:
        raise untold(type(op), "which machines can run it (simulator.capability)")
    for name in _SIZES[type(op)]:
        if getattr(op, name) < 1:
            return f"{name}={getattr(op, name)}, must be at least 1"
    if isinstance(op, WindowOp):
        if min(op.input_height, op.input_width, op.pad_top, op.pad_left) < 0:
            return "input_height, input_width, pad_top and pad_left must not be negative"
        value, limit = op.input_zero_point, _code_limit(chip)
        if not -limit <= value < limit:
            return f"input_zero_point={value}, must be {-limit}..{limit - 1} ({chip.numerics.activation})"
    return next(_broken(op, chip), None)


def _broken(op: MachineOp, chip: Chip) -> Iterator[str]:
    if isinstance(op, Convolution):
        yield from _convolution(op, chip)
    elif isinstance(op, Depthwise):
        yield from _depthwise(op, chip)
    elif isinstance(op, MatrixProduct):
        yield from _matrix_product(op, chip)
    elif isinstance(op, Copy | Fill):
        outer = sum(n > 1 for n in (op.count0, op.count1)[: 3 - chip.engines.dma.dimensions])
        if outer:
            counts = f"{op.count0}x{op.count1}x{op.count2}"
            yield f"counts {counts}, the machine has engines.dma.dimensions={chip.engines.dma.dimensions}"
        limit = _code_limit(chip)
        if isinstance(op, Fill) and not -limit <= op.value < limit:
            yield f"value={op.value}, must be {-limit}..{limit - 1} ({chip.numerics.activation})"
    elif isinstance(op, Pool):
        yield from _pool(op, chip)
    elif isinstance(op, Elementwise):
        yield from _elementwise(op, chip)
    elif isinstance(op, Table):
        yield from _function("table", chip)
        yield from _table_form(chip)
    elif not isinstance(op, Signal | Wait | End):  # those are checked where programs are ordered
        raise untold(type(op), "which machines can run it (simulator.capability)")


def _code_limit(chip: Chip) -> int:
    """Codes of activations are -limit .. limit - 1."""
    return 1 << (8 * chip.activation_bytes - 1)


def _function(name: str, chip: Chip) -> Iterator[str]:
    if name not in chip.engines.vector.operations:
        yield f"engines.vector.operations has no {name}"


def _table_form(chip: Chip) -> Iterator[str]:
    activation, entries = chip.numerics.activation, chip.numerics.table.entries
    wanted = 513 if activation == "int16" else 256
    if entries != wanted:
        yield f"tables of numerics.table.entries={entries} do not take {activation} (needs {wanted})"


def _types(chip: Chip) -> Iterator[str]:
    pair = (chip.numerics.activation, chip.numerics.weight)
    if pair not in [(t.activation, t.weight) for t in chip.engines.mac.types]:
        yield f"engines.mac.types has no {pair[0]} by {pair[1]}"


def _accumulators(held: int, chip: Chip) -> Iterator[str]:
    entries = chip.engines.mac.accumulators.entries
    if held > entries:
        yield f"needs {held} accumulators, the machine has engines.mac.accumulators.entries={entries}"


def _post(op: WeightedWindowOp, chip: Chip) -> Iterator[str]:
    if not op.emit:
        return
    if op.use_table:
        if "table" not in chip.engines.mac.post:
            yield "use_table=1, engines.mac.post has no table"
        yield from _table_form(chip)
    if isinstance(op, Convolution) and op.use_add and "add" not in chip.engines.mac.post:
        yield "use_add=1, engines.mac.post has no add"


def _convolution(op: Convolution, chip: Chip) -> Iterator[str]:
    limits = chip.limits.convolution
    yield from _weighted_window(op, op.output_channels, limits, "convolution", chip)
    if limits.max_input_channels is not None and op.input_channels > limits.max_input_channels:
        yield f"{op.input_channels} input channels, limits.convolution.max_input_channels={limits.max_input_channels}"
    if limits.max_output_channels is not None and op.output_channels > limits.max_output_channels:
        yield f"{op.output_channels} output channels, limits.convolution.max_output_channels={limits.max_output_channels}"


def _depthwise(op: Depthwise, chip: Chip) -> Iterator[str]:
    if chip.engines.mac.depthwise == "none":
        yield "engines.mac.depthwise is none"
    limits = chip.limits.depthwise
    yield from _weighted_window(op, op.channels, limits, "depthwise", chip)
    if limits.max_output_channels is not None and op.channels > limits.max_output_channels:
        yield f"{op.channels} channels, limits.depthwise.max_output_channels={limits.max_output_channels}"


def _weighted_window(
    op: WeightedWindowOp, output_channels: int, limits: ConvolutionLimits, key: str, chip: Chip
) -> Iterator[str]:
    yield from _types(chip)
    yield from _accumulators(op.output_height * op.output_width * output_channels, chip)
    yield from _post(op, chip)
    found = (
        ("kernel", (op.kernel_height, op.kernel_width), limits.max_kernel),
        ("stride", (op.stride_height, op.stride_width), limits.max_stride),
        ("dilation", (op.dilation_height, op.dilation_width), limits.max_dilation),
        ("pad", (op.pad_top, op.pad_left), limits.max_pad),
    )
    for name, (height, width), limit in found:
        if limit is not None and (height > limit[0] or width > limit[1]):
            yield f"{name} {height}x{width}, limits.{key}.max_{name}={limit[0]}x{limit[1]}"
    if limits.max_width is not None and op.output_width > limits.max_width:
        yield f"output width {op.output_width}, limits.{key}.max_width={limits.max_width}"


def _matrix_product(op: MatrixProduct, chip: Chip) -> Iterator[str]:
    limits = chip.limits.matrix_product
    yield from _accumulators(op.rows * op.columns, chip)
    if not limits.computed_operand:
        yield "both operands are activations, limits.matrix_product.computed_operand is false"
    if limits.max_k is not None and op.inner > limits.max_k:
        yield f"inner size {op.inner}, limits.matrix_product.max_k={limits.max_k}"
    if limits.max_n is not None and op.columns > limits.max_n:
        yield f"{op.columns} columns, limits.matrix_product.max_n={limits.max_n}"


def _pool(op: Pool, chip: Chip) -> Iterator[str]:
    if op.kind not in (PoolKind.MAX, PoolKind.AVERAGE):
        yield f"kind={op.kind} is no pool"
        return
    yield from _function("max_pool" if op.kind == PoolKind.MAX else "average_pool", chip)
    limits = chip.limits.pool
    for name in ("kernel", "stride"):
        limit = getattr(limits, f"max_{name}")
        height, width = getattr(op, f"{name}_height"), getattr(op, f"{name}_width")
        if limit is not None and (height > limit[0] or width > limit[1]):
            yield f"{name} {height}x{width}, limits.pool.max_{name}={limit[0]}x{limit[1]}"


def _elementwise(op: Elementwise, chip: Chip) -> Iterator[str]:
    if op.kind not in _KINDS:
        yield f"kind={op.kind} is no elementwise operation"
        return
    yield from _function(_KINDS[op.kind], chip)
    size = chip.activation_bytes
    for name, stride in (("a", op.a_channel_stride), ("b", op.b_channel_stride)):
        if op.channels > 1 and stride not in (0, size) and not (name == "b" and op.kind == ElementwiseKind.RESCALE):
            yield f"{name}_channel_stride={stride}, must be 0 (broadcast) or {size} (one element)"


class AccumulatorState:
    """What the accumulators hold between the operations of the array."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None

    def broken(self, op: MachineOp) -> str | None:
        """The reason why `op` cannot follow the operations before it on the array, or None."""
        if isinstance(op, Convolution):
            shape: tuple[int, ...] = (op.output_height, op.output_width, op.output_channels)
        elif isinstance(op, Depthwise):
            shape = (op.output_height, op.output_width, op.channels)
        elif isinstance(op, MatrixProduct):
            shape = (op.rows, op.columns)
        elif op.ENGINE == "mac":
            raise untold(type(op), "what it leaves in the accumulators (simulator.capability)")
        else:
            return None
        held, self.shape = self.shape, None if op.emit else shape
        if not op.accumulate or held == shape:
            return None
        if held is None:
            return "accumulate=1, but the operation before it on the array left no sums"
        return f"accumulate=1 with output shape {_by(shape)}, but the accumulators hold {_by(held)}"


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(str(n) for n in shape)
