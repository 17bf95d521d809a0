#!/usr/bin/env python3
"""Provide a labelled set for ImageNet classifiers: 156 photo stamps of Tux Paint, eight variants each, and a model's score.

    `python scripts/fetch_zoo.py zoo --only stamps,efficientnet_lite0`.
    `python scripts/stamp_dataset.py zoo/data/stamps zoo/models/efficientnet_lite0.onnx`.

Variant 0 is the stamp centred on white.
The others are mirrored, rotated, scaled and placed at random on a plain colour, the same for the same seed.
The stamps are GPL-2+ and fetched, never shipped.
The noise of 156 images alone is about 3 points either way: quote 8 variants (1,248 images) at least.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quant.float_session import open_session

# Stamp (path without .png) -> the ImageNet-1k classes that name what it shows.
ACCEPTED: dict[str, tuple[int, ...]] = {
    "animals/amphibians/frog": (30, 31, 32),
    "animals/amphibians/frog-1": (30, 31, 32),
    "animals/birds/albino_peahen": (84,),
    "animals/birds/chicken_profile": (8, 7),
    "animals/birds/crowned_crane": (134,),
    "animals/birds/drake": (97,),
    "animals/birds/gander": (99,),
    "animals/birds/hen": (8,),
    "animals/birds/heron_greatblue": (131, 134, 132),
    "animals/birds/heron_greatblue_flying": (131, 134, 132),
    "animals/birds/little-penguin": (145,),
    "animals/birds/magellanic_penguin": (145,),
    "animals/birds/magpie": (18,),
    "animals/birds/ostrich": (9,),
    "animals/birds/owl": (24,),
    "animals/birds/peacock": (84,),
    "animals/birds/pelican": (144,),
    "animals/birds/penguin": (145,),
    "animals/birds/pink_flamingo": (130,),
    "animals/birds/rainbow-lorikeet": (90,),
    "animals/birds/rooster": (7,),
    "animals/birds/tucan": (96,),
    "animals/birds/vulture": (23,),
    "animals/fish/clownfish": (393,),
    "animals/fish/lionfish": (396,),
    "animals/fish/lobster": (122, 123, 124),
    "animals/insects/Brown_slug": (114,),
    "animals/insects/Woodlouse": (126,),
    "animals/insects/bee": (309,),
    "animals/insects/fly": (308,),
    "animals/insects/grasshopper": (311,),
    "animals/insects/hoverfly": (308, 309),
    "animals/insects/mantis": (315,),
    "animals/lizards/iguana": (39,),
    "animals/mammals/apes/chimp": (367,),
    "animals/mammals/apes/gorilla": (366,),
    "animals/mammals/apes/tamarin_emperor": (377, 378),
    "animals/mammals/aquatic/orca": (148,),
    "animals/mammals/aquatic/otter": (360,),
    "animals/mammals/aquatic/sea_lion": (150,),
    "animals/mammals/badger": (362,),
    "animals/mammals/bears/bear": (294, 295),
    "animals/mammals/bears/european-bear": (294,),
    "animals/mammals/bears/toys/edward_bear": (850,),
    "animals/mammals/bovines/bison": (347,),
    "animals/mammals/bovines/bull": (345,),
    "animals/mammals/bovines/cow": (345,),
    "animals/mammals/bovines/cow_white": (345,),
    "animals/mammals/bovines/goat": (350, 348),
    "animals/mammals/bovines/indian_blackbuck": (351, 352, 353),
    "animals/mammals/bovines/mountaingoat": (350, 348, 349),
    "animals/mammals/bovines/ram": (348, 349),
    "animals/mammals/bovines/sheep": (348,),
    "animals/mammals/camel/camel": (354,),
    "animals/mammals/camel/dromedary": (354,),
    "animals/mammals/cats/lion": (291,),
    "animals/mammals/cats/lion-2": (291,),
    "animals/mammals/cats/tiger": (292,),
    "animals/mammals/cats/tiger_sumatran": (292,),
    "animals/mammals/dogs/dingo": (273,),
    "animals/mammals/dogs/fox": (277,),
    "animals/mammals/echidna": (102,),
    "animals/mammals/elephant": (101, 385, 386),
    "animals/mammals/equines/horse": (339,),
    "animals/mammals/equines/zebra": (340,),
    "animals/mammals/ferret": (358, 359),
    "animals/mammals/hedgehog": (334, 102),
    "animals/mammals/hippopotamus": (344,),
    "animals/mammals/pig": (341,),
    "animals/mammals/rabbit_little": (330, 331, 332),
    "animals/mammals/rodents/beaver": (337,),
    "animals/mammals/rodents/marmot": (336,),
    "animals/mammals/rodents/rabbit": (330, 331, 332),
    "animals/mammals/rodents/rabbit-2": (330, 331, 332),
    "animals/mammals/rodents/squirrel": (335,),
    "animals/mammals/wildboar": (342,),
    "animals/marsupials/kangaroo": (104,),
    "animals/marsupials/koala": (105,),
    "animals/marsupials/wombat": (106,),
    "clothes/hats/sombrero": (808,),
    "clothes/t_pants": (608,),
    "clothes/t_sock": (806,),
    "clothes/t_tshirt": (610,),
    "food/fruit/Strawberry2": (949,),
    "food/fruit/apple_granny_smith": (948,),
    "food/fruit/apple_green": (948,),
    "food/fruit/banana": (954,),
    "food/fruit/cherimoya": (956,),
    "food/fruit/lemon": (951,),
    "food/fruit/mandarine": (950,),
    "food/fruit/orange": (950,),
    "food/fruit/orange_seville": (950,),
    "food/fruit/pineapple": (953,),
    "food/fruit/pomegranate": (957,),
    "food/fruit/sliced_orange": (950,),
    "food/fruit/strawberry": (949,),
    "food/pizza": (963,),
    "food/vegetables/broccoli": (937,),
    "food/vegetables/corn": (987,),
    "food/vegetables/mushroom": (947,),
    "food/vegetables/pepper": (945,),
    "food/vegetables/yellowpepper": (945,),
    "hobbies/binoculars": (447,),
    "hobbies/camera_35mm": (759,),
    "hobbies/music/brass/trumpet": (513,),
    "hobbies/music/percussion/drum_tomtom_floor": (541,),
    "hobbies/music/percussion/drumkit": (541,),
    "hobbies/music/string/cello": (486, 889),
    "hobbies/music/string/guitar2": (402, 546),
    "hobbies/music/string/guitar_classical": (402,),
    "hobbies/music/string/guitar_electric": (546,),
    "hobbies/music/string/guitar_electric_bass": (546,),
    "hobbies/music/string/violin": (889,),
    "hobbies/music/wind/bassoon": (432,),
    "household/dishes/mug": (504,),
    "household/dishes/pitcher_small": (725,),
    "household/dishes/teapot": (849,),
    "household/garbagecan": (412,),
    "household/toilet": (861,),
    "household/tools/hammer": (587,),
    "household/tools/paintbrush_large": (696,),
    "household/tools/spade": (792,),
    "household/wheelie_bin": (412,),
    "medical/bandage_adhesive": (419,),
    "medical/stethoscope": (823,),
    "medical/syringe": (845,),
    "military/vehicles/bradley": (847,),
    "military/vehicles/f22_raptor": (895,),
    "plants/mushrooms/cep": (997, 947),
    "plants/mushrooms/cep-1": (997, 947),
    "plants/mushrooms/cep-2": (997, 947),
    "seasonal/candle": (470,),
    "seasonal/halloween/jackolantern_mean": (607,),
    "sports/australian_rules_football": (768,),
    "sports/basketball": (430,),
    "sports/rugby_goal_posts": (733, 602),
    "sports/soccer": (805,),
    "sports/tennis_ball": (852,),
    "sports/tennis_racket": (752,),
    "town/roadsigns/stop": (919,),
    "town/roadsigns/stoplight_01_red": (920,),
    "town/roadsigns/stoplight_02_yellow": (920,),
    "town/roadsigns/stoplight_03_green": (920,),
    "town/uk_post_box": (637,),
    "town/usps_mailbox": (637,),
    "vehicles/7spoke256": (479,),
    "vehicles/auto/sportscar2": (817,),
    "vehicles/cycle/pink_tricycle": (870,),
    "vehicles/emergency/firetruck": (555,),
    "vehicles/emergency/sedan_police": (734, 468, 436),
    "vehicles/flight/balloon360": (417,),
    "vehicles/flight/planes/747": (404,),
    "vehicles/garbagetruck": (569,),
    "vehicles/masstransit/green_korean_bus": (654, 874, 779),
    "vehicles/race/indycar": (751,),
    "vehicles/wheel_tractor": (866,),
}
MARGIN = 0.85  # of the picture's side, filled by variant 0


@dataclass(frozen=True)
class Labelled:
    """A labelled image.

    `image`: uint8[size, size, 3], RGB.
    `accepted`: ImageNet-1k classes of which any is right.
    `stamp`: path of the stamp without .png.
    """

    image: NDArray[np.uint8]
    accepted: tuple[int, ...]
    stamp: str


def resize_stamp(stamp: Image.Image, fraction: float, size: int) -> Image.Image:
    """Return the stamp with its longer side `fraction` of `size` pixels."""
    ratio = fraction * size / max(stamp.size)
    shape = (max(1, round(stamp.width * ratio)), max(1, round(stamp.height * ratio)))
    return stamp.resize(shape, Image.Resampling.LANCZOS)


def plain(stamp: Image.Image, size: int) -> Image.Image:
    """Return the stamp centred on a white square of `size` pixels."""
    small = resize_stamp(stamp, MARGIN, size)
    canvas = Image.new("RGB", (size, size), (255, 255, 255))
    canvas.paste(small, ((size - small.width) // 2, (size - small.height) // 2), small)
    return canvas


def augment_stamp(stamp: Image.Image, size: int, rng: random.Random) -> Image.Image:
    """Return the stamp on a square of a random plain colour, at a random place.

    It is mirrored half of the time, rotated up to 12 degrees, and 0.6 to 0.98 of the side.
    """
    fraction = rng.uniform(0.6, 0.98)
    if rng.random() < 0.5:
        stamp = stamp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    stamp = stamp.rotate(rng.uniform(-12, 12), expand=True, resample=Image.Resampling.BICUBIC)
    small = resize_stamp(stamp, fraction, size)
    colour = (rng.randrange(90, 256), rng.randrange(90, 256), rng.randrange(90, 256))
    canvas = Image.new("RGB", (size, size), colour)
    canvas.paste(small, (rng.randint(0, size - small.width), rng.randint(0, size - small.height)), small)
    return canvas


def variants(folder: Path, per_stamp: int = 8, size: int = 224, seed: int = 0) -> Iterator[Labelled]:
    """Yield every stamp of ACCEPTED in `folder` (DEST/data/stamps of fetch_zoo.py) `per_stamp` times, in a fixed order.

    The first variant of each is `plain`; the others are drawn by `seed`.
    """
    rng = random.Random(seed)
    for name, accepted in ACCEPTED.items():
        with Image.open(folder / f"{name}.png", formats=["PNG"]) as picture:
            stamp = picture.convert("RGBA")
        stamp = stamp.crop(stamp.getbbox())
        for variant in range(per_stamp):
            image = augment_stamp(stamp, size, rng) if variant else plain(stamp, size)
            yield Labelled(np.asarray(image), accepted, name)


def network_input(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32[1, 3, h, w] from uint8[h, w, 3]: (rgb - 127) / 128, as EfficientNet-Lite was trained."""
    return ((image.astype(np.float32) - np.float32(127)) / np.float32(128)).transpose(2, 0, 1)[None]


def main() -> None:
    parser = argparse.ArgumentParser(description="Top-1 and top-5 of ImageNet classifiers on the stamps.")
    parser.add_argument("stamps", type=Path, help="DEST/data/stamps, as fetch_zoo.py leaves it")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--per-stamp", type=int, default=8)
    options = parser.parse_args()
    if not options.stamps.is_dir():
        raise SystemExit(f"{options.stamps}: no such folder; fetch it with scripts/fetch_zoo.py DEST --only stamps")
    for path in options.models:
        session = open_session(path)
        port = session.get_inputs()[0]
        count = top1 = top5 = 0
        for labelled in variants(options.stamps, options.per_stamp, size=port.shape[2]):
            logits = np.asarray(session.run(None, {port.name: network_input(labelled.image)})[0])[0]
            best = np.argsort(-logits)[:5]
            count += 1
            top1 += int(best[0] in labelled.accepted)
            top5 += any(int(label) in labelled.accepted for label in best)
        print(f"{path}: n {count} top-1 {top1 / count:.4f} top-5 {top5 / count:.4f}")


if __name__ == "__main__":
    main()
