"""A reader of model.npu written from docs/container.md alone: nothing of the toolchain is imported here."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Model:
    """A reader of a compiled file.

    `header`: the header as in the file.
    `blocks`: constant bytes.
    `entry`: the only entry point.
    """

    header: dict[str, Any]
    body: bytes

    @property
    def entry(self) -> dict[str, Any]:
        (entry,) = self.header["entries"]
        return entry

    def span(self, span: list[int]) -> bytes:
        first, size = span
        return self.body[first : first + size]

    def machine(self) -> dict[str, Any]:
        return json.loads(self.span(self.header["machine"]))

    def block(self, number: int) -> bytes:
        return self.span(self.header["blocks"][number])

    def words(self, region: dict[str, Any]) -> list[int]:
        """The instruction words of a region's program."""
        size, program = self.machine()["isa"]["word_bits"] // 8, self.span(region["program"])
        return [int.from_bytes(program[i : i + size], "little") for i in range(0, len(program), size)]

    def dram(self, region: dict[str, Any]) -> np.ndarray:
        """The DRAM before inputs are written."""
        memory = np.zeros(region["dram_bytes"], np.uint8)
        for address, block in region["constants"]:
            data = np.frombuffer(self.block(block), np.uint8)
            memory[address : address + data.size] = data
        return memory

    def op_layers(self, region: dict[str, Any]) -> list[int]:
        data = self.span(region["op_layers"])
        return list(struct.unpack(f"<{len(data) // 4}i", data))

    def graph(self) -> dict[str, Any]:
        return json.loads(self.span(self.entry["graph"]))

    def array(self, constant: dict[str, Any]) -> np.ndarray:
        dtype, shape, pieces = constant["array"]
        data = b"".join(self.block(block)[first : first + size] for block, first, size in pieces)
        if dtype == "int4":
            halves = [half - 16 if half > 7 else half for byte in data for half in (byte & 15, byte >> 4)]
            return np.array(halves[: int(np.prod(shape))], np.int8).reshape(shape)
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)


def read(data: bytes) -> Model:
    magic, version, length, digest = struct.unpack_from("<8sIQ32s", data)
    assert (magic, version) == (b"NPUMODEL", 2)
    assert length == len(data) - 52
    assert hashlib.sha256(data[52:]).digest() == digest
    (size,) = struct.unpack_from("<Q", data, 52)
    assert (60 + size) % 16 == 0
    return Model(json.loads(data[60 : 60 + size]), data[60 + size :])


def codes(port: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """A tensor of the user's as the chip's codes."""
    x = x.transpose(0, 2, 3, 1) if port["layout"] == "nhwc" else x
    limits = np.iinfo(port["dtype"])
    near = np.rint(x / np.float32(port["scale"])) + port["zero_point"]
    return np.clip(near, limits.min, limits.max).astype(port["dtype"]).reshape(port["shape"])


def real(port: dict[str, Any], q: np.ndarray) -> np.ndarray:
    y = (q.astype(np.float32) - np.float32(port["zero_point"])) * np.float32(port["scale"])
    return y.transpose(0, 3, 1, 2) if port["layout"] == "nhwc" else y


def requantize_sums(acc: np.ndarray, fields: dict[str, Any], model: Model) -> np.ndarray:
    """round half up of acc multiplier / 2**shift: the rounding of machines that say single_half_up."""
    multiplier, shift = (model.array(fields[k]).astype(np.int64) for k in ("multiplier", "shift"))
    scaled = (acc * multiplier + (np.int64(1) << (shift - 1))) >> shift
    return np.clip(scaled + fields["zero_point"], fields["low"], fields["high"])
