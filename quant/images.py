"""Reads calibration samples from a directory of images, scaled and normalised as the model was trained (`Preprocess`).

`quant.calibration_data` uses it. Images are decoded by Pillow, one sample at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from quant.fit_sample import MissingArray, Sample, fit_array
from toolchain.errors import CompileError, ConfigError, first_line
from toolchain.foundation.type_guards import is_dict
from toolchain.hw import read_yaml, validate
from toolchain.input_limits import IMAGE_FORMATS, IMAGE_PIXELS
from toolchain.ir.graph import TensorType

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
PREPROCESS_FILE = "preprocess.yaml"
_WHITE_16 = (1 << 16) - 1
_EIGHT_BITS = frozenset(("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"))
_Channels = Annotated[tuple[float, ...], Field(min_length=1, max_length=3)]


class Preprocess(BaseModel):
    """A preprocessing of images: x = (pixel - mean) / std with pixels 0..255.

    `mean`, `std`: one figure for all channels or one each, in the order of `channels`; std above 0.
    `fit`: stretch to the input's size, crop the middle after scaling the short side, or pad with `pad` after scaling the long
    one.
    `layout`: axis order of the input; None: the channel axis is the one of size 1 or 3, axis 1 before axis 3.
    `pad`: pixel value around the image, 0..255.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    mean: _Channels = (0.0,)
    std: _Channels = (1.0,)
    fit: Literal["stretch", "crop", "pad"] = "stretch"
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    channels: Literal["rgb", "bgr"] = "rgb"
    layout: Literal["nchw", "nhwc"] | None = None  # None: where the input has 1 or 3 channels
    pad: Annotated[int, Field(ge=0, le=255)] = 0

    @field_validator("std")
    @classmethod
    def _divisible(cls, std: tuple[float, ...]) -> tuple[float, ...]:
        if min(std) <= 0:
            raise ValueError(f"must be more than 0, got {min(std):g}")
        return std


def read_preprocess(path: Path) -> Preprocess:
    """Read a preprocess.yaml. Raise ConfigError with every fault as `file:line: path: reason`."""
    source = read_yaml(path, str(path))
    if is_dict(source.data):
        listed = {k: [v] if k in ("mean", "std") and isinstance(v, int | float) else v for k, v in source.data.items()}
        source = replace(source, data=listed)
    preprocess, faults = validate(Preprocess, source)
    if preprocess is None:
        raise ConfigError(faults)
    return preprocess


def image_samples(
    directory: Path, files: Sequence[Path], inputs: Mapping[str, TensorType], preprocess: Preprocess | None
) -> tuple[int, Callable[[], Iterator[Sample]]]:
    """Return the number of samples and a function that starts a stream of them.

    `files`: the images, in order. Each sample takes as many as the input's batch; the last one is filled up from the first
    images.
    `inputs`: the one input, of shape [n, c, h, w] or [n, h, w, c] with 1 or 3 channels.
    `preprocess`: None: that of preprocess.yaml in the directory; without such a file only integer inputs are served, unscaled.

    Raise MissingArray for several inputs, CompileError for an input that takes no image or has no preprocessing. The stream
    raises CompileError for an image that cannot be read.
    """
    if len(inputs) != 1:
        problem = f"{directory}: images feed one input, the model has {len(inputs)} ({', '.join(inputs)}); give an .npz"
        raise MissingArray(problem, tuple(inputs))
    name, t = next(iter(inputs.items()))
    options = preprocess or _directory_preprocess(directory, t)
    layout = _layout(directory, name, t, options)
    batch = t.shape[0]
    count = -(-len(files) // batch)

    def start() -> Iterator[Sample]:
        for i in range(count):
            row = [files[(i * batch + j) % len(files)] for j in range(batch)]
            stacked = np.stack([_read_image(file, t, layout, options) for file in row])
            yield {name: fit_array(stacked, name, t, str(row[0]))}

    return count, start


def _directory_preprocess(directory: Path, t: TensorType) -> Preprocess:
    """Return the preprocessing in the directory's file, or the identity for an integer input. Raise CompileError for a float
    one."""
    path = directory / PREPROCESS_FILE
    if path.is_file():
        return read_preprocess(path)
    if np.dtype(t.dtype).kind == "f":
        raise CompileError(
            f"{directory}: images need to be scaled as the model was trained, and there is no {PREPROCESS_FILE}; "
            "write one, such as\n  mean: [123.675, 116.28, 103.53]  # x = (pixel - mean) / std, pixels 0..255\n"
            "  std: [58.395, 57.12, 57.375]"
        )
    return Preprocess()


def _layout(directory: Path, name: str, t: TensorType, options: Preprocess) -> str:
    """Return `nchw` or `nhwc`. Raise CompileError where the input's shape is no image of 1 or 3 channels."""
    if len(t.shape) == 4:
        if options.layout:
            return options.layout
        if t.shape[1] in (1, 3):
            return "nchw"
        if t.shape[3] in (1, 3):
            return "nhwc"
    raise CompileError(
        f"{directory}: input {name!r} of shape {list(t.shape)} is no image of 1 or 3 channels; give an .npz or file.py:function"
    )


def _open_image(path: Path, mode: str) -> Image.Image:
    """Return the image in Pillow's mode `L` or `RGB`. Raise CompileError: unreadable, too many pixels.

    Formats are named: under any other, Pillow starts programs such as Ghostscript.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=IMAGE_FORMATS) as opened:
                if opened.width * opened.height > IMAGE_PIXELS:
                    raise Image.DecompressionBombError
                return _in_mode(opened, mode, path)
    except CompileError:
        raise
    except Image.DecompressionBombError:
        raise CompileError(f"{path}: has more than {IMAGE_PIXELS:,} pixels; make it smaller") from None
    except MemoryError:
        raise
    except Exception as fault:  # Pillow's decoders raise SyntaxError, struct.error and others
        raise CompileError(f"{path}: no readable image: {first_line(fault)}; remove it") from None


def _in_mode(image: Image.Image, mode: str, path: Path) -> Image.Image:
    """Return the image with pixels of 8 bits in the mode L or RGB; 16-bit pixels are scaled.

    Raise CompileError for other depths and for transparent pixels.
    """
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of a PNG: Pillow's own conversion cuts off at 255
        values = np.asarray(image, np.float64)
        if values.min() < 0 or values.max() > _WHITE_16:
            raise CompileError(
                f"{path}: holds pixels from {values.min():g} to {values.max():g}, not 0 to {_WHITE_16}; save 8 bits"
            )
        return Image.fromarray(np.rint(values * (255 / _WHITE_16)).astype(np.uint8)).convert(mode)
    if image.mode not in _EIGHT_BITS:
        raise CompileError(f"{path}: has pixels of the mode {image.mode}; save it with 8 bits a channel, grey or RGB")
    if image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        raise CompileError(f"{path}: has transparent pixels, whose colours are nobody's choice; save it on a background")
    return image.convert(mode)


def _read_image(path: Path, t: TensorType, layout: str, options: Preprocess) -> np.ndarray:
    """Return t.dtype[c, h, w] or [h, w, c], by `layout`. For integer inputs values are rounded and clipped to the type.

    Raise CompileError where the image or the numbers of channels do not fit.
    """
    from PIL import Image

    c, h, w = (t.shape[1], t.shape[2], t.shape[3]) if layout == "nchw" else (t.shape[3], t.shape[1], t.shape[2])
    if c not in (1, 3):
        raise CompileError(f"{path}: the input has {c} channels, an image 1 or 3; give an .npz or file.py:function")
    image = _open_image(path, "L" if c == 1 else "RGB")
    resample = Image.Resampling[options.resample.upper()]
    if options.fit == "stretch":
        image = image.resize((w, h), resample)
    else:
        choose = max if options.fit == "crop" else min
        ratio = choose(w / image.width, h / image.height)
        size = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
        if size[0] * size[1] > IMAGE_PIXELS:
            raise CompileError(
                f"{path}: {image.width} x {image.height} pixels are {size[0]} x {size[1]} when they cover {w} x {h}, "
                f"{IMAGE_PIXELS:,} pixels are the most; crop it, or use fit: stretch or pad"
            )
        image = image.resize(size, resample)
        canvas = Image.new(image.mode, (w, h), options.pad if c == 1 else (options.pad,) * 3)
        canvas.paste(image, ((w - image.width) // 2, (h - image.height) // 2))
        image = canvas
    pixels = np.asarray(image, np.float64).reshape(h, w, c)
    if options.channels == "bgr" and c == 3:
        pixels = pixels[:, :, ::-1]
    for figures, key in ((options.mean, "mean"), (options.std, "std")):
        if len(figures) not in (1, c):
            raise CompileError(f"{path}: {key} has {len(figures)} figures, the input {c} channels; give 1 or {c}")
    x = (pixels - np.array(options.mean)) / np.array(options.std)
    x = x if layout == "nhwc" else x.transpose(2, 0, 1)
    dtype = np.dtype(t.dtype)
    if dtype.kind == "f":
        return x.astype(dtype)
    info = np.iinfo(dtype)
    return np.clip(np.rint(x), info.min, info.max).astype(dtype)
