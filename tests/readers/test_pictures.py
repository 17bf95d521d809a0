"""Images and generators of calibration data that a stranger may send."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from quant.data import open_data
from toolchain.errors import CompileError
from toolchain.ir.graph import TensorType

INPUTS = {"x": TensorType((1, 3, 8, 8), "uint8")}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def refusal(folder: Path) -> str:
    with pytest.raises(CompileError) as refused:
        list(open_data(folder, INPUTS))
    return str(refused.value)


@pytest.mark.parametrize("side", [8193, 12_000, 60_000])  # above our bound, above Pillow's warning, above Pillow's error
def test_an_image_of_too_many_pixels(side: int, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(side, side))
    assert refusal(tmp_path) == f"{tmp_path}/a.png: has more than 67,108,864 pixels; make it smaller"


def test_a_thin_image_is_not_blown_up(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1, 2_000_000, bytes(4_000_000)))
    (tmp_path / "preprocess.yaml").write_text("fit: crop\n")
    assert refusal(tmp_path) == (
        f"{tmp_path}/a.png: 1 x 2000000 pixels are 8 x 16000000 when they cover 8 x 8, 67,108,864 pixels are the most; crop it, "
        "or use fit: stretch or pad"
    )


def test_postscript_under_the_name_of_an_image(tmp_path: Path) -> None:
    """Pillow would start Ghostscript on it."""
    (tmp_path / "a.png").write_bytes(EPS)
    assert refusal(tmp_path) == f"{tmp_path}/a.png: no readable image: cannot identify image file '{tmp_path}/a.png'; remove it"


@pytest.mark.parametrize("cut", [20, 40, 60])
def test_a_damaged_image(cut: int, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(64, 64, bytes(65 * 64))[:cut])
    assert refusal(tmp_path).startswith(f"{tmp_path}/a.png: no readable image: ")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("    sys.exit(0)\n    yield\n", "sample 0: SystemExit: 0 (line 3); mend the generator"),
        ("    return sys.exit(0)\n", "SystemExit: 0 (line 3); it must return an iterable of samples"),
        ("    yield [[1], [2, 3]]\n", None),
    ],
)
def test_a_generator_that_ends_the_program(code: str, reason: str | None, tmp_path: Path) -> None:
    (tmp_path / "feed.py").write_text(f"import sys\ndef f():\n{code}")
    with pytest.raises(CompileError) as refused:
        list(open_data(f"{tmp_path}/feed.py:f", INPUTS))
    if reason is None:
        assert str(refused.value).startswith(f"{tmp_path}/feed.py:f: sample 0: is no array: setting an array element with a seq")
    else:
        assert str(refused.value) == f"{tmp_path}/feed.py:f: {reason}"


def test_a_file_that_ends_the_program_when_imported(tmp_path: Path) -> None:
    (tmp_path / "feed.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(CompileError) as refused:
        list(open_data(f"{tmp_path}/feed.py:f", INPUTS))
    assert str(refused.value) == f"{tmp_path}/feed.py: SystemExit: 0 (line 2); the file must import cleanly"
