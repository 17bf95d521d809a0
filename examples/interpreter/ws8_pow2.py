"""Model the machine ws8_pow2 from its manual alone (`npu-hw manual ws8_pow2`); the model needs only numpy.

    `python examples/interpreter/ws8_pow2.py IMAGE INPUT.npy OUTPUT.npy`.
    `python examples/interpreter/ws8_pow2.py --vectors KIT`.

The first runs a compiled model as `npu-build --hw ws8_pow2 --image IMAGE` wrote it (docs/image.md), on one float input.
The second runs the cases of `npu-hw vectors ws8_pow2 --instructions --out KIT` and compares the memories afterwards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DRAM, SRAM = 0, 1
SIZES = (256 << 20, 128 << 10)
ACCUMULATOR_BITS = 32
INT32 = (-(1 << 31), (1 << 31) - 1)

# "Registers": name -> address, number of addresses, fields (high, low, signed, step, bias)
WIDE = {
    "SRC_ADDRESS": 0x00,
    "DST_ADDRESS": 0x02,
    "SRC_STRIDE1": 0x04,
    "SRC_STRIDE2": 0x06,
    "DST_STRIDE1": 0x08,
    "DST_STRIDE2": 0x0A,
}
PLAIN = {
    "A_ADDRESS": (0x0F, 16),
    "A_ROW": (0x10, 16),
    "A_COLUMN": (0x11, 16),
    "A_CHANNEL": (0x12, 16),
    "A_HEIGHT": (0x13, 17),
    "A_WIDTH": (0x14, 17),
    "B_ADDRESS": (0x16, 16),
    "B_ROW": (0x17, 16),
    "B_COLUMN": (0x18, 16),
    "B_CHANNEL": (0x19, 16),
    "OUT_ADDRESS": (0x1A, 16),
    "OUT_ROW": (0x1B, 16),
    "OUT_COLUMN": (0x1C, 16),
    "WEIGHT_ADDRESS": (0x22, 16),
}
COUNTS = {
    "DMA_COUNT1": 0x0C,
    "DMA_COUNT2": 0x0D,
    "DMA_RUN": 0x0E,
    "A_DEPTH": 0x15,
    "OUT_HEIGHT": 0x1D,
    "OUT_WIDTH": 0x1E,
    "OUT_DEPTH": 0x1F,
}
Field = tuple[int, int, bool, int, int]
KERNEL = {
    "height": (3, 0, False, 1, 1),
    "width": (7, 4, False, 1, 1),
    "stride_height": (10, 8, False, 1, 1),
    "stride_width": (13, 11, False, 1, 1),
    "dilation_height": (15, 14, False, 1, 1),
    "dilation_width": (17, 16, False, 1, 1),
}
PAIR = {"height": (7, 0, False, 1, 1), "width": (15, 8, False, 1, 1)}
SCALE = {"multiplier": (0, 0, False, 1, 0), "shift": (7, 1, True, 1, 0)}
REGISTERS: dict[str, tuple[int, int, dict[str, Field]]] = {
    **{name: (at, 2, {"value": (27, 0, False, 1, 0)}) for name, at in WIDE.items()},
    **{name: (at, 1, {"value": (high, 0, False, 1, 0)}) for name, (at, high) in PLAIN.items()},
    **{name: (at, 1, {"value": (16, 0, False, 1, 1)}) for name, at in COUNTS.items()},
    "KERNEL": (0x20, 1, KERNEL),
    "PAD": (0x21, 1, {"top": (3, 0, False, 1, 0), "left": (7, 4, False, 1, 0)}),
    "PARAMETER_ADDRESS": (0x23, 1, {"value": (13, 0, False, 8, 0)}),
    "POOL_KERNEL": (0x24, 1, PAIR),
    "POOL_STRIDE": (0x25, 1, PAIR),
    "POOL_DILATION": (0x26, 1, PAIR),
    "POOL_PAD": (0x27, 1, {"top": (7, 0, False, 1, 0), "left": (15, 8, False, 1, 0)}),
    "CLAMP": (0x28, 1, {"low": (7, 0, True, 1, 0), "high": (15, 8, True, 1, 0)}),
    "SCALE_A": (0x29, 1, {**SCALE, "left_shift": (12, 8, False, 1, 0)}),
    "SCALE_B": (0x2A, 1, SCALE),
    "SCALE": (0x2B, 1, SCALE),
}
OPERATIONS = {
    1: "copy",
    2: "fill",
    3: "convolution",
    4: "depthwise",
    5: "matrix_product",
    6: "pool",
    7: "elementwise",
    9: "signal",
    10: "wait",
    11: "end",
}


class Fault(Exception):
    """An action that, by the manual, no program takes."""


def extract(word: int, field: Field) -> int:
    """The value of a field."""
    high, low, signed, step, bias = field
    width = high - low + 1
    stored = word >> low & (1 << width) - 1
    if signed and stored >> width - 1:
        stored -= 1 << width
    return stored * step + bias


class Registers:
    """A set of registers as write words left them. Reading one that was not written is a fault."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def write(self, address: int, value: int) -> None:
        self._values[address] = value

    def __getitem__(self, path: str) -> int:
        """`KERNEL.height`, or a name of a register with one field."""
        name, _, field = path.partition(".")
        address, count, fields = REGISTERS[name]
        word = 0
        for part in range(count):
            if address + part not in self._values:
                raise Fault(f"{name} was not written")
            word |= self._values[address + part] << 24 * part
        return extract(word, fields[field or "value"])


# "Arithmetic"


def wrap(v: Array) -> Array:
    half = 1 << ACCUMULATOR_BITS - 1
    return (v + half) % (2 * half) - half


def round_shift(x: Array, shift: Any) -> Array:
    """x / 2^s without its fraction, towards zero; where s is negative x 2^(-s)."""
    right, left = np.maximum(shift, 0), np.maximum(-shift, 0)
    return np.sign(x) * (np.abs(x) >> right) << left


def requantize(x: Array, shift: Any, low: int, high: int) -> Array:
    """The multiplier is 1 and the zero point 0 in every program."""
    return np.clip(round_shift(x, shift), low, high)


def inner(x: Array, shift: int) -> Array:
    return requantize(x, np.int64(shift), *INT32)


class Machine:
    """Memories, registers, the accumulators and the semaphores."""

    def __init__(self, dram_bytes: int = 0):
        self.memory = [bytearray(dram_bytes), bytearray(SIZES[SRAM])]
        self.registers = Registers()
        self.sums: Array | None = None
        self.counts = [0] * 32

    # views of the memories

    def bytes_at(self, space: int, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """int8 of that shape, strides in bytes; a view."""
        last = address + sum((n - 1) * s for n, s in zip(shape, strides))
        if min(shape) > 0 and last >= len(self.memory[space]):
            raise Fault(f"byte {last:#x} lies outside of memory {space}")
        return np.ndarray(shape, np.int8, self.memory[space], address, strides)

    def put(self, view: Array, values: Array) -> None:
        view[...] = values.astype(np.int8)

    # words

    def run(self, program: bytes) -> None:
        """The words of a program, one by one, up to its end."""
        if len(program) % 4:
            raise Fault(f"a program of {len(program)} bytes")
        words = np.frombuffer(program, "<u4").tolist()
        for number, word in enumerate(words):
            if word >> 31:
                self.registers.write(word >> 24 & 0x7F, word & 0xFFFFFF)
                continue
            name = OPERATIONS.get(word >> 24 & 0x7F)
            if name is None:
                raise Fault(f"word {number}: no operation has opcode {word >> 24 & 0x7F}")
            if name == "end":
                if number != len(words) - 1:
                    raise Fault(f"word {number}: end, and {len(words) - 1 - number} more words")
                if any(self.counts):
                    raise Fault("a semaphore is not 0 at the end")
                return
            getattr(self, name)(word & 0xFFFFFF)
        raise Fault("no end")

    # signals and waits: run one by one in the order of the program, every wait passes

    def signal(self, word: int) -> None:
        semaphore = extract(word, (6, 2, False, 1, 0))
        self.counts[semaphore] += 1
        if self.counts[semaphore] > 15:
            raise Fault(f"semaphore {semaphore} counts {self.counts[semaphore]}")

    def wait(self, word: int) -> None:
        semaphore = extract(word, (6, 2, False, 1, 0))
        if not self.counts[semaphore]:
            raise Fault(f"a wait for semaphore {semaphore}, which nothing has signalled")
        self.counts[semaphore] -= 1

    # moves

    def copy(self, word: int) -> None:
        r = self.registers
        shape = (r["DMA_COUNT1"], r["DMA_COUNT2"], r["DMA_RUN"])
        source = self.bytes_at(word >> 1 & 1, r["SRC_ADDRESS"], shape, (r["SRC_STRIDE1"], r["SRC_STRIDE2"], 1))
        target = self.bytes_at(word >> 2 & 1, r["DST_ADDRESS"], shape, (r["DST_STRIDE1"], r["DST_STRIDE2"], 1))
        self.put(target, source.copy())

    def fill(self, word: int) -> None:
        r = self.registers
        shape = (r["DMA_COUNT1"], r["DMA_COUNT2"], r["DMA_RUN"])
        target = self.bytes_at(word >> 1 & 1, r["DST_ADDRESS"], shape, (r["DST_STRIDE1"], r["DST_STRIDE2"], 1))
        self.put(target, np.array(extract(word, (9, 2, True, 1, 0))))

    # windows

    def window(self, channels: int, pool: bool, padding: int) -> Iterator[tuple[int, int, Array]]:
        """Yield for each ky, kx the elements it meets, int64[output_height, output_width, channels].

        `padding`: value that padding reads as.
        """
        r = self.registers
        names = ("POOL_KERNEL", "POOL_STRIDE", "POOL_DILATION", "POOL_PAD") if pool else ("KERNEL",) * 3 + ("PAD",)
        prefix = ("", "", "") if pool else ("", "stride_", "dilation_")
        kernel, stride, dilation = ((r[f"{name}.{start}height"], r[f"{name}.{start}width"]) for name, start in zip(names, prefix))
        pads = r[f"{names[3]}.top"], r[f"{names[3]}.left"]
        size, strides = (r["A_HEIGHT"], r["A_WIDTH"]), (r["A_ROW"], r["A_COLUMN"], 1)
        output = (r["OUT_HEIGHT"], r["OUT_WIDTH"])
        for ky in range(kernel[0]):
            for kx in range(kernel[1]):
                rows, columns = (np.arange(output[a]) * stride[a] + k * dilation[a] - pads[a] for a, k in enumerate((ky, kx)))
                inside = [np.flatnonzero((at >= 0) & (at < size[a])) for a, at in enumerate((rows, columns))]
                elements = np.full((*output, channels), padding, np.int64)
                if inside[0].size and inside[1].size:
                    first = (rows[inside[0][0]], columns[inside[1][0]])
                    shape = (inside[0].size, inside[1].size, channels)
                    address = r["A_ADDRESS"] + int(first[0]) * strides[0] + int(first[1]) * strides[1]
                    steps = (stride[0] * strides[0], stride[1] * strides[1], 1)
                    elements[np.ix_(*inside)] = self.bytes_at(SRAM, address, shape, steps)
                yield ky, kx, elements

    def output(self, rows: int, columns: int, channels: int) -> Array:
        r = self.registers
        return self.bytes_at(SRAM, r["OUT_ADDRESS"], (rows, columns, channels), (r["OUT_ROW"], r["OUT_COLUMN"], 1))

    # the array

    def accumulate(self, sums: Array, word: int) -> bool:
        """Takes the sums into the accumulators; whether results are made of them now."""
        if word & 1:
            if self.sums is None or self.sums.shape != sums.shape:
                raise Fault("accumulate, but the accumulators hold no sums of this shape")
            sums = sums + self.sums
        self.sums = wrap(sums)
        return bool(word >> 1 & 1)

    def emit_results(self, channels: int) -> Array:
        """Results of each channel's sums, by its entry of 16 bytes."""
        address = self.registers["PARAMETER_ADDRESS"]
        entries = self.bytes_at(SRAM, address, (channels, 16), (16, 1)).tobytes()
        fields = np.frombuffer(entries, np.dtype([("bias", "<i8"), ("multiplier", "<u4"), ("shift", "<i4")]))
        if (fields["multiplier"] != 1).any():
            raise Fault("a multiplier that is not 1")
        assert self.sums is not None
        a, self.sums = wrap(self.sums + wrap(fields["bias"])), None
        return requantize(a, fields["shift"].astype(np.int64), self.registers["CLAMP.low"], self.registers["CLAMP.high"])

    def convolution(self, word: int) -> None:
        r = self.registers
        inputs, outputs = r["A_DEPTH"], r["OUT_DEPTH"]
        kernel = (r["KERNEL.height"], r["KERNEL.width"])
        size = outputs * kernel[0] * kernel[1] * inputs
        weights = self.bytes_at(SRAM, r["WEIGHT_ADDRESS"], (size,), (1,)).reshape(outputs, *kernel, inputs).astype(np.int64)
        sums = np.zeros((r["OUT_HEIGHT"], r["OUT_WIDTH"], outputs), np.int64)
        for ky, kx, elements in self.window(inputs, pool=False, padding=0):
            sums += elements @ weights[:, ky, kx].T
        if self.accumulate(sums, word):
            self.put(self.output(r["OUT_HEIGHT"], r["OUT_WIDTH"], outputs), self.emit_results(outputs))

    def depthwise(self, word: int) -> None:
        r = self.registers
        channels, kernel = r["OUT_DEPTH"], (r["KERNEL.height"], r["KERNEL.width"])
        raw = self.bytes_at(SRAM, r["WEIGHT_ADDRESS"], (kernel[0] * kernel[1] * channels,), (1,))
        weights = raw.reshape(*kernel, channels).astype(np.int64)
        sums = np.zeros((r["OUT_HEIGHT"], r["OUT_WIDTH"], channels), np.int64)
        for ky, kx, elements in self.window(channels, pool=False, padding=0):
            sums += elements * weights[ky, kx]
        if self.accumulate(sums, word):
            self.put(self.output(r["OUT_HEIGHT"], r["OUT_WIDTH"], channels), self.emit_results(channels))

    def matrix_product(self, word: int) -> None:
        r = self.registers
        rows, depth, columns = r["OUT_HEIGHT"], r["A_DEPTH"], r["OUT_DEPTH"]
        a = self.bytes_at(SRAM, r["A_ADDRESS"], (rows, depth), (r["A_ROW"], 1)).astype(np.int64)
        b = self.bytes_at(SRAM, r["B_ADDRESS"], (depth, columns), (r["B_ROW"], r["B_COLUMN"])).astype(np.int64)
        if self.accumulate(a @ b, word):
            assert self.sums is not None
            q = requantize(self.sums, np.int64(r["SCALE.shift"]), r["CLAMP.low"], r["CLAMP.high"])
            self.sums = None
            self.put(self.bytes_at(SRAM, r["OUT_ADDRESS"], (rows, columns), (r["OUT_ROW"], 1)), q)

    # the vector engine

    def pool(self, word: int) -> None:
        r = self.registers
        channels, low, high = r["OUT_DEPTH"], r["CLAMP.low"], r["CLAMP.high"]
        if word & 1:
            total = sum(elements for _, _, elements in self.window(channels, pool=True, padding=0))
            q = requantize(np.asarray(total), np.int64(r["SCALE.shift"]), low, high)
        else:
            largest = np.full((1, 1, 1), -128)
            for _, _, elements in self.window(channels, pool=True, padding=-128):
                largest = np.maximum(largest, elements)
            q = np.clip(largest, low, high)
        self.put(self.output(r["OUT_HEIGHT"], r["OUT_WIDTH"], channels), q)

    def operand(self, name: str) -> Array:
        r = self.registers
        shape = (r["OUT_HEIGHT"], r["OUT_WIDTH"], r["OUT_DEPTH"])
        strides = (r[f"{name}_ROW"], r[f"{name}_COLUMN"], r[f"{name}_CHANNEL"])
        return self.bytes_at(SRAM, r[f"{name}_ADDRESS"], shape, strides).astype(np.int64)

    def elementwise(self, word: int) -> None:
        r, kind = self.registers, word & 7
        a, left_shift, limits = self.operand("A"), r["SCALE_A.left_shift"], (r["CLAMP.low"], r["CLAMP.high"])
        shifts = {name: np.int64(r[f"{name}.shift"]) for name in ("SCALE_A", "SCALE_B", "SCALE")}
        b = np.zeros_like(a) if kind == 3 else self.operand("B")
        if kind in (0, 1):
            ta, tb = inner(a << left_shift, r["SCALE_A.shift"]), inner(b << left_shift, r["SCALE_B.shift"])
            q = requantize(ta - tb if kind else ta + tb, shifts["SCALE"], *limits)
        elif kind == 2:
            q = requantize(a * b, shifts["SCALE"], *limits)
        elif kind == 3:
            q = requantize(a, shifts["SCALE"], *limits)
        elif kind == 4:
            q = np.where(a >= 0, requantize(a, shifts["SCALE_A"], *limits), requantize(a * b, shifts["SCALE_B"], *limits))
        else:
            raise Fault(f"elementwise of kind {kind}")
        self.put(self.output(*a.shape), q)


def run_image(image: Path, x: Array) -> Array:
    """A compiled model, of one region, on one input of floats: the codes of its output, as floats."""
    ports = json.loads((image / "ports.json").read_text())
    (segment,) = ports["segments"]
    machine = Machine(segment["dram_bytes"])
    constants = (image / segment["constants"]["file"]).read_bytes()
    for block in segment["constants"]["blocks"]:
        piece = constants[block["offset"] : block["offset"] + block["bytes"]]
        machine.memory[DRAM][block["address"] : block["address"] + block["bytes"]] = piece
    (source,), (target,) = segment["inputs"], segment["outputs"]
    if source["layout"] == "nhwc":
        x = np.moveaxis(x, 1, -1)
    codes = np.clip(np.rint(x / source["scale"]) + source["zero_point"], -128, 127).astype(np.int8)
    machine.memory[DRAM][source["address"] : source["address"] + source["bytes"]] = codes.tobytes()
    machine.run((image / segment["program"]["file"]).read_bytes())
    data = bytes(machine.memory[DRAM][target["address"] : target["address"] + target["bytes"]])
    stored_codes = np.frombuffer(data, target["dtype"]).reshape(target["shape"])
    y = (stored_codes.astype(np.float32) - target["zero_point"]) * np.float32(target["scale"])
    return np.moveaxis(y, -1, 1) if target["layout"] == "nhwc" else y


def run_case(path: Path) -> bool:
    """A case of the vectors of instructions: whether the memories afterwards are those that it gives."""
    with np.load(path) as case:
        description = json.loads(str(case["case"]))
        names = [name for name in ("dram", "sram") if name in description["memories"]]
        ends = {name: int(case[f"{name}_ranges"].sum(1).max()) for name in names}
        machine = Machine(ends.get("dram", 0))
        for name in names:
            for part, address, size in _parts(case, name, "before"):
                machine.memory[("dram", "sram").index(name)][address : address + size] = part
        machine.run(case["words"].tobytes())
        return all(
            bytes(machine.memory[("dram", "sram").index(name)][address : address + size]) == part
            for name in names
            for part, address, size in _parts(case, name, "after")
        )


def _parts(case: Any, name: str, when: str) -> Iterator[tuple[bytes, int, int]]:
    """Bytes, address and size of each range of a memory."""
    values, at = case[f"{name}_{when}"], 0
    for address, size in case[f"{name}_ranges"].tolist():
        yield values[at : at + size].tobytes(), address, size
        at += size


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--vectors"] and len(arguments) == 2:
        paths = sorted(Path(arguments[1]).glob("*.npz"))
        wrong = [path.stem for path in paths if not run_case(path)]
        print(f"{len(paths) - len(wrong)} of {len(paths)} cases are as given")
        print("".join(f"differs: {name}\n" for name in wrong), end="")
        return 1 if wrong else 0
    if len(arguments) != 3:
        print(__doc__)
        return 2
    image, source, target = (Path(a) for a in arguments)
    np.save(target, run_image(image, np.load(source)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
