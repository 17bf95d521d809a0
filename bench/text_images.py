"""Draws pictures of text by a seed: lines, pages with their boxes, letters on photographs, for bench/repair_datasets.py."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sentence_dataset import list_documented

Array = NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, right, bottom

_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansCondensed",
    "DejaVuSansMono",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
)


@cache
def _font(name: str, size: int) -> Any:
    """Return the system's font, or Pillow's where that is missing."""
    try:
        return ImageFont.truetype(f"{name}.ttf", size)
    except OSError:
        return ImageFont.load_default(size)


@cache
def _words(fold: int) -> tuple[str, ...]:
    """Return words of the library's docstrings; no word is in both folds."""
    words = sorted(
        {
            w
            for pair in list_documented()
            for text in pair
            for w in text.split()
            if w.isascii() and w.isalpha() and 2 <= len(w) <= 12
        }
    )
    return tuple(words[fold::2])


def _text(fold: int, rng: random.Random) -> str:
    """Return random words, or digits and punctuation, of a fold."""
    if rng.random() < 0.25:
        return "".join(rng.choice(string.digits + ".,:-/") for _ in range(rng.randint(4, 10))).strip(".,:-/") + str(fold)
    text = " ".join(rng.choice(_words(fold)) for _ in range(rng.choice((1, 1, 2))))
    return rng.choice((text, text, text.upper(), text.title()))


def _colours(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (ink, paper) as RGB, the one light and the other dark."""
    dark, light = (tuple(rng.randint(low, high) for _ in range(3)) for low, high in ((0, 90), (165, 255)))
    return (dark, light) if rng.random() < 0.75 else (light, dark)


def _degrade(image: Image.Image, rng: random.Random, most_blur: float, most_noise: float) -> Array:
    """Return the image as uint8[h, w, 3], blurred and with noise, by random amounts up to these."""
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, most_blur)))
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, most_noise), (image.height, image.width, 3))
    return np.clip(np.asarray(image, np.float32) + noise, 0, 255).astype(np.uint8)


def strings(fold: int, count: int | None, seed: int) -> Iterator[tuple[Array, str]]:
    """Yield pictures of a line, uint8[h, w, 3], and what is written there.

    `count`: None: without end.
    """
    rng, done = random.Random(f"strings {fold} {seed}"), 0
    while count is None or done < count:
        text, font = _text(fold, rng), _font(rng.choice(_FONTS), rng.randint(12, 40))
        left, top, right, bottom = font.getbbox(text)
        ink, paper = _colours(rng)
        room = rng.randint(2, 8)
        image = Image.new("RGB", (int(right - left) + 2 * room + 4, int(bottom - top) + 2 * room), paper)
        ImageDraw.Draw(image).text((room + 2 - left, room - top), text, fill=ink, font=font)
        image = image.rotate(rng.uniform(-2, 2), resample=Image.Resampling.BICUBIC, fillcolor=paper)
        yield _degrade(image, rng, 1.2, 22.0), text
        done += 1


def text_input(image: Array, width: int) -> NDArray[np.float32]:
    """Return a line as PaddleOCR gives it to its recognizer: float32[1, 3, 48, width].

    It has 48 rows, -1..1, blue first, zeros after it.
    """
    wide = min(width, -(-48 * image.shape[1] // image.shape[0]))
    scaled = np.asarray(Image.fromarray(image).resize((wide, 48), Image.Resampling.BILINEAR), np.float32)
    pixels = np.zeros((1, 3, 48, width), np.float32)
    pixels[0, :, :, :wide] = ((scaled[:, :, ::-1] / 255 - 0.5) / 0.5).transpose(2, 0, 1)
    return pixels


def page(size: int, fold: int, seed: tuple[int, ...]) -> tuple[Array, list[Box]]:
    """Return a picture of a page, uint8[size, size, 3], and the box (left, top, right, bottom) of each line on it."""
    rng = random.Random(f"page {fold} {seed}")
    ink, paper = _colours(rng)
    image = Image.new("RGB", (size, size), paper)
    draw, boxes, y = ImageDraw.Draw(image), list[Box](), rng.randint(10, 50)
    while True:
        height = rng.randint(14, 34)
        text, font = " ".join(_text(fold, rng) for _ in range(rng.randint(1, 4))), _font(rng.choice(_FONTS), height)
        x = rng.randint(10, 120)
        while draw.textlength(text, font=font) > size - x - 10 and " " in text:
            text = text.rsplit(" ", 1)[0]
        left, top, right, bottom = draw.textbbox((x, y), text, font=font)
        if bottom > size - 10:
            return _degrade(image, rng, 0.8, 10.0), boxes
        if right < size - 4:
            draw.text((x, y), text, fill=ink, font=font)
            boxes.append((left, top, right, bottom))
        y += height + rng.randint(height // 2 + 4, 2 * height + 10)


def photographs(folder: Path) -> list[Path]:
    """Return the pictures in a folder, by name."""
    return sorted(f for f in folder.iterdir() if f.suffix in (".png", ".jpg"))


def letters_on(photograph: Path, size: int, seed: tuple[int, ...]) -> Array:
    """Return a part of a photograph with four to six rotated letters on it, uint8[size, size, 3]."""
    rng = random.Random(f"letters {seed}")
    with Image.open(photograph) as picture:
        image = picture.convert("RGB")
    side = rng.randint(min(image.size) // 2, min(image.size))
    crop_left, top = rng.randint(0, image.width - side), rng.randint(0, image.height - side)
    image = image.crop((crop_left, top, crop_left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    for _ in range(rng.randint(4, 6)):
        height = rng.randint(size // 10, size // 5)
        tile = Image.new("RGBA", (2 * height, 2 * height))
        ink = tuple(rng.randint(0, 255) for _ in range(3))
        ImageDraw.Draw(tile).text(
            (height // 2, height // 3), rng.choice(string.ascii_letters), fill=ink, font=_font(_FONTS[1], height)
        )
        tile = tile.rotate(rng.uniform(-35, 35), resample=Image.Resampling.BICUBIC)
        image.paste(tile, (rng.randint(0, size - 2 * height), rng.randint(0, size - 2 * height)), tile)
    return np.asarray(image)
