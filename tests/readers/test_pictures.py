"""Images and generators of calibration data that a stranger may send."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quant.calibration_data import open_data
from quant.images import _in_mode
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
        assert str(refused.value).startswith(
            f"{tmp_path}/feed.py:f: sample 0: is no array: ValueError: setting an array element with a seq"
        )
    else:
        assert str(refused.value) == f"{tmp_path}/feed.py:f: {reason}"


def test_a_file_that_ends_the_program_when_imported(tmp_path: Path) -> None:
    (tmp_path / "feed.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(CompileError) as refused:
        list(open_data(f"{tmp_path}/feed.py:f", INPUTS))
    assert str(refused.value) == f"{tmp_path}/feed.py: SystemExit: 0 (line 2); the file must import cleanly"


GREY = np.array([[0, 64, 128, 255]], np.uint8)
SAME = {  # the same picture in every mode that has its meaning
    "L": GREY,
    "I;16": GREY.astype(np.uint16) * 257,
    "RGB": np.repeat(GREY[..., None], 3, -1),
    "RGBA": np.concatenate([np.repeat(GREY[..., None], 3, -1), np.full((1, 4, 1), 255, np.uint8)], -1),
    "LA": np.stack([GREY, np.full((1, 4), 255, np.uint8)], -1),
}


def picture(mode: str, pixels: np.ndarray) -> Image.Image:
    return Image.frombuffer(mode, (4, 1), np.ascontiguousarray(pixels).tobytes(), "raw", mode, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", [*SAME, "P", "1"])
def test_every_mode_of_a_picture_gives_its_pixels(mode: str, channels: int, tmp_path: Path) -> None:
    expected = np.where(GREY < 128, 0, 255) if mode == "1" else GREY
    if mode in SAME:
        image = picture(mode, SAME[mode])
    else:
        image = picture("RGB", SAME["RGB"]).convert(mode, dither=Image.Dither.NONE, palette=Image.Palette.ADAPTIVE)
    image.save(tmp_path / "a.png")
    (sample,) = open_data(tmp_path, {"x": TensorType((1, channels, 1, 4), "uint8")})
    assert (sample["x"] == expected).all(), sample["x"]


def test_sixteen_bits_in_thirty_two_are_read() -> None:
    """Check what older Pillow makes of a PNG of 16 bits."""
    image = Image.fromarray(GREY.astype(np.int32) * 257)
    assert image.mode == "I" and (np.asarray(_in_mode(image, "L", Path("a.png"))) == GREY).all()


def test_a_cmyk_picture_is_read(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 0, 0, 255)).save(tmp_path / "a.jpg")
    (sample,) = open_data(tmp_path, INPUTS)
    assert sample["x"].max() < 8


def test_pictures_whose_pixels_mean_nothing_are_refused(tmp_path: Path) -> None:
    clear = SAME["RGBA"].copy()
    clear[0, 1, 3] = 17
    picture("RGBA", clear).save(tmp_path / "a.png")
    assert refusal(tmp_path) == (
        f"{tmp_path}/a.png: has transparent pixels, whose colours are nobody's choice; save it on a background"
    )
    with pytest.raises(CompileError, match="has pixels of the mode F; save it with 8 bits a channel, grey or RGB"):
        _in_mode(Image.new("F", (2, 2)), "L", tmp_path)
    with pytest.raises(CompileError, match="holds pixels from 70000 to 70000, not 0 to 65535; save 8 bits"):
        _in_mode(Image.new("I", (2, 2), 70_000), "L", tmp_path)
