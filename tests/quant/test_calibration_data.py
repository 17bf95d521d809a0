"""Readers of calibration data: every form gives the same samples, and every fault says what, where and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quant.calibration_data import open_data, random_data
from quant.fit_sample import count_samples, fit_array
from quant.images import Preprocess, read_preprocess
from toolchain.errors import CompileError, ConfigError
from toolchain.ir.graph import TensorType

X = TensorType((2, 3), "float32")
ONE = {"x": X}
TWO = {"x": X, "ids": TensorType((1, 4), "int64")}
IMAGE = {"image": TensorType((1, 3, 4, 6), "float32")}
ARRAY = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


def collect(samples) -> list[dict[str, np.ndarray]]:
    return [dict(s) for s in samples]


def check_array_samples(samples, count: int = 4) -> None:
    collected = collect(samples)
    assert len(collected) == count
    for i, sample in enumerate(collected):
        assert sample["x"].dtype == np.float32 and sample["x"].flags.c_contiguous
        np.testing.assert_array_equal(sample["x"], ARRAY[i])


@pytest.mark.parametrize("shape", [(4, 2, 3), (8, 3)], ids=["samples x shape", "samples x batch"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz(tmp_path: Path, shape, save, order) -> None:
    array = np.asarray(ARRAY.reshape(shape), order=order)
    save(tmp_path / "c.npz", x=array)
    save(tmp_path / "unnamed.npz", array)
    for name in ("c.npz", "unnamed.npz"):
        samples = open_data(tmp_path / name, ONE)
        assert samples.count == 4
        check_array_samples(samples)
        check_array_samples(samples)  # starts afresh


def test_npz_of_two_inputs_ignores_labels(tmp_path: Path) -> None:
    ids = np.arange(16, dtype=np.int32).reshape(4, 4)
    np.savez(tmp_path / "c.npz", x=ARRAY, ids=ids, labels=np.zeros(99))
    collected = collect(open_data(tmp_path / "c.npz", TWO, limit=3))
    assert len(collected) == 3 and collected[2]["ids"].dtype == np.int64
    np.testing.assert_array_equal(collected[2]["ids"], ids[2:3])


def test_npy_file_and_directories(tmp_path: Path) -> None:
    np.save(tmp_path / "all.npy", ARRAY.astype(np.float64))
    check_array_samples(open_data(tmp_path / "all.npy", ONE))
    (tmp_path / "one").mkdir()
    (tmp_path / "npz").mkdir()
    for i in range(4):
        np.save(tmp_path / "one" / f"{i:02}.npy", ARRAY[i])
        np.savez(tmp_path / "npz" / f"{i:02}.npz", x=ARRAY[i], ids=np.arange(4))
    check_array_samples(open_data(tmp_path / "one", ONE))
    check_array_samples(open_data(tmp_path / "one", ONE, limit=2), 2)
    check_array_samples(open_data(tmp_path / "npz", TWO))
    for name in TWO:
        (tmp_path / "two" / name).mkdir(parents=True)
        for i in range(4):
            np.save(tmp_path / "two" / name / f"{i}.npy", ARRAY[i] if name == "x" else np.arange(4))
    check_array_samples(open_data(tmp_path / "two", TWO))


def test_generator(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("scale = 1.0\n")
    path = tmp_path / "calib.py"
    path.write_text(
        "import numpy as np\nfrom beside import scale\n"
        "def make():\n    for i in range(4):\n"
        "        yield {'x': scale * np.arange(6 * i, 6 * i + 6, dtype=np.float32).reshape(2, 3)}\n"
        "def lone():\n    return [s['x'] for s in make()]\n"
    )
    check_array_samples(open_data(f"{path}:make", ONE))
    check_array_samples(open_data(f"{path}:lone", ONE))
    check_array_samples(open_data(f"{path}:make", ONE, limit=1), 1)


def test_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "preprocess.yaml").write_text("mean: [1, 2, 3]\nstd: 2.0\n")
    (sample,) = collect(open_data(tmp_path, IMAGE))
    expected = ((pixels.astype(np.float64) - [1, 2, 3]) / 2).astype(np.float32).transpose(2, 0, 1)[None]
    np.testing.assert_array_equal(sample["image"], expected)
    nhwc = {"image": TensorType((1, 4, 6, 3), "uint8")}
    (sample,) = collect(open_data(tmp_path, nhwc, preprocess=Preprocess(channels="bgr")))
    np.testing.assert_array_equal(sample["image"], pixels[None, :, :, ::-1])


def test_images_fill_the_last_batch_and_fit(tmp_path: Path) -> None:
    for i in range(3):
        Image.new("L", (8, 8), 10 * (i + 1)).save(tmp_path / f"{i}.png")
    batched = {"image": TensorType((2, 1, 4, 8), "float32")}
    collected = collect(open_data(tmp_path, batched, preprocess=Preprocess(fit="pad", pad=255)))
    assert [s["image"][:, 0, 0, 4].tolist() for s in collected] == [[10, 20], [30, 10]]
    assert collected[0]["image"][0, 0, 0].tolist() == [255, 255, 10, 10, 10, 10, 255, 255]
    cropped = collect(open_data(tmp_path, batched, preprocess=Preprocess(fit="crop")))
    assert (cropped[0]["image"][0] == 10).all()


def test_random_data_is_the_same_for_the_same_seed() -> None:
    inputs = {"x": X, "ids": TensorType((1, 9), "int64"), "pixels": TensorType((99,), "uint8"), "flag": TensorType((9,), "bool")}
    one, two = collect(random_data(inputs, 3, seed=5)), collect(random_data(inputs, 3, seed=5))
    assert len(one) == 3 and all((a[n] == b[n]).all() for a, b in zip(one, two, strict=True) for n in inputs)
    assert all(one[0][n].dtype == t.dtype and one[0][n].shape == t.shape for n, t in inputs.items())
    assert set(one[0]["ids"].ravel()) <= {0, 1} and one[0]["pixels"].max() > 200
    assert (one[0]["x"] != collect(random_data(inputs, 1, seed=6))[0]["x"]).any()


@pytest.mark.parametrize("more", [".DS_Store", "README.txt", "x/._0.npy", "x/.DS_Store"])
def test_files_that_are_no_samples_may_lie_beside_a_directory_of_an_input(tmp_path: Path, more: str) -> None:
    (tmp_path / "x").mkdir()
    for i, array in enumerate(ARRAY):
        np.save(tmp_path / "x" / f"{i}.npy", array)
    (tmp_path / more).write_bytes(b"of the system")
    check_array_samples(open_data(tmp_path, ONE))


# --- refusals, with their whole text ({d} is the directory)


def write_bad_data(d: Path) -> None:
    np.savez(d / "shape.npz", x=np.zeros((4, 5, 5), np.float32))
    np.savez(d / "batch.npz", x=np.zeros((5, 3), np.float32))
    np.savez(d / "none.npz", x=np.zeros((0, 2, 3), np.float32))
    np.savez(d / "type.npz", x=np.zeros((4, 2, 3), np.uint8))
    np.savez(d / "named.npz", images=ARRAY)
    np.savez(d / "names.npz", X=ARRAY, idx=np.zeros((4, 4), np.int64))
    np.savez(d / "counts.npz", x=ARRAY, ids=np.zeros((3, 4), np.int64))
    np.savez(d / "big.npz", x=ARRAY, ids=np.full((4, 4), 2**63, np.uint64))
    np.savez(d / "objects.npz", x=np.array([{}], object))
    holes = ARRAY.copy()
    holes[2, 1, 0] = np.nan
    np.savez(d / "nan.npz", x=holes)
    np.savez(d / "inf.npz", x=np.where(np.isnan(holes), np.inf, holes))
    np.savez(d / "whole.npz", x=ARRAY)
    (d / "cut.npz").write_bytes((d / "whole.npz").read_bytes()[:200])
    np.save(d / "whole.npy", ARRAY)
    (d / "cut.npy").write_bytes((d / "whole.npy").read_bytes()[:-8])
    np.savez_compressed(d / "flipped.npz", x=np.random.default_rng(0).standard_normal((9999, 2, 3)).astype(np.float32))
    flipped = bytearray((d / "flipped.npz").read_bytes())
    flipped[-300] ^= 1
    (d / "flipped.npz").write_bytes(flipped)
    (d / "text.txt").write_text("x")
    for name in ("empty", "mixed", "forms", "arrays", "images", "broken", "other", "suffix", "channels_last"):
        (d / name).mkdir()
    (d / "halves" / "x").mkdir(parents=True)
    np.save(d / "halves" / "x" / "0.npy", ARRAY[0])
    for name in ("classes/cats/a.png", "classes/dogs/b.png", "suffix/a.gif", "suffix/b.webp"):
        (d / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(d / name)
    np.savez(d / "channels_last.npz", image=np.zeros((4, 4, 6, 3), np.float32))
    np.save(d / "channels_last" / "a.npy", np.zeros((4, 6, 3), np.float32))
    Image.new("RGB", (4, 4)).save(d / "mixed" / "a.png")
    Image.new("RGB", (4, 4)).save(d / "images" / "a.png")
    (d / "broken" / "a.png").write_bytes(b"no image")
    np.save(d / "mixed" / "a.npy", ARRAY[0])
    np.save(d / "forms" / "a.npy", ARRAY[0])
    np.savez(d / "forms" / "b.npz", ARRAY[0])
    np.save(d / "arrays" / "a.npy", ARRAY[0])
    np.save(d / "other" / "a.npy", ARRAY[0][:1])
    (d / "g.py").write_text(
        "import numpy as np\n"
        "def nothing():\n    return []\n"
        "def fails():\n    yield np.zeros((2, 3), np.float32)\n    yield 1 / 0\n"
        "def wrong():\n    yield {'x': np.zeros((2, 4), np.float32)}\n"
        "def number():\n    return 3\n"
        "def wrong_name():\n    yield {'images': np.zeros((2, 3), np.float32)}\n"
    )
    (d / "syntax.py").write_text("def make(:\n")


BAD_DATA = [
    (
        "absent.npz",
        ONE,
        "{d}/absent.npz: no such file or directory; give an .npz, a directory of .npy or images, or file.py:function",
    ),
    (
        "text.txt",
        ONE,
        "{d}/text.txt: .txt suffix is no form of calibration data; "
        "give an .npz, a directory of .npy or images, or file.py:function",
    ),
    (
        "shape.npz",
        ONE,
        "{d}/shape.npz: array for input 'x' has shape [4, 5, 5]; the input takes [2, 3], so it must be [samples, 3]: "
        "resize the samples, or bind other dimensions with --shape",
    ),
    (
        "batch.npz",
        ONE,
        "{d}/batch.npz: array for input 'x' has 5 rows, no multiple of the batch 2; drop the odd rows, "
        "or bind another batch with --shape",
    ),
    ("none.npz", ONE, "{d}/none.npz: holds 0 samples; calibration needs at least 1"),
    (
        "type.npz",
        ONE,
        "{d}/type.npz: sample 0: input 'x' is uint8, the model takes float32; save it with .astype('float32'), "
        "scaled as the model was trained",
    ),
    (
        "named.npz",
        ONE,
        "{d}/named.npz: no array for input 'x' (arrays: 'images'); save it as numpy.savez(path, **{'x': x})",
    ),
    ("g.py:wrong_name", ONE, "{d}/g.py:wrong_name: sample 0: no array for input 'x' (given: 'images'); add it"),
    (
        "names.npz",
        {"ids": TWO["ids"], "x": X},
        "{d}/names.npz: no array for input 'ids' (arrays: 'X', 'idx'); "
        "save it as numpy.savez(path, **{'ids': x}); did you mean \"idx\"?",
    ),
    (
        "counts.npz",
        TWO,
        "{d}/counts.npz: the inputs have different numbers of samples ('x' 4, 'ids' 3); give each as many",
    ),
    (
        "big.npz",
        TWO,
        "{d}/big.npz: sample 0: input 'ids' holds 9223372036854775808 to 9223372036854775808, outside the "
        "-9223372036854775808 to 9223372036854775807 of the model's int64; mend the data",
    ),
    (
        "objects.npz",
        ONE,
        "{d}/objects.npz: damaged, or no array file of numpy: it holds Python objects; save it again with numpy.savez",
    ),
    (
        "nan.npz",
        ONE,
        "{d}/nan.npz: sample 2: input 'x' holds NaN at [1, 0]; calibration needs finite data, remove the sample",
    ),
    (
        "inf.npz",
        ONE,
        "{d}/inf.npz: sample 2: input 'x' holds infinity at [1, 0]; calibration needs finite data, remove the sample",
    ),
    (
        "cut.npz",
        ONE,
        "{d}/cut.npz: damaged, or no array file of numpy: File is not a zip file; save it again with numpy.savez",
    ),
    ("cut.npy", ONE, "{d}/cut.npy: the file ends 8 bytes early; save it again"),
    (
        "flipped.npz",
        ONE,
        "{d}/flipped.npz: damaged, or no array file of numpy: Bad CRC-32 for file 'x.npy'; save it again with numpy.savez",
    ),
    (
        "empty",
        ONE,
        "{d}/empty: no .npy, .npz or images in this directory; save samples as .npy, or images as .png, .jpg, .jpeg, .bmp",
    ),
    (
        "suffix",
        ONE,
        "{d}/suffix: no .npy, .npz or images in this directory, but 2 other files (.gif, .webp); save samples as .npy, or images "
        "as .png, .jpg, .jpeg, .bmp",
    ),
    (
        "halves",
        TWO,
        "{d}/halves: no directory for input 'ids' (directories: 'x'); make a directory of .npy for it, named like the input",
    ),
    (
        "classes",
        IMAGE,
        "{d}/classes: no .npy, .npz or images in this directory, but images in 2 folders of it, such as cats; put them into one",
    ),
    (
        "channels_last.npz",
        IMAGE,
        "{d}/channels_last.npz: array for input 'image' has shape [4, 4, 6, 3]; the input takes [1, 3, 4, 6], so it must be "
        "[samples, 3, 4, 6]: its channels are last, so save x.transpose(0, 3, 1, 2)",
    ),
    (
        "channels_last",
        IMAGE,
        "{d}/channels_last/a.npy: input 'image' has shape [4, 6, 3], the model takes [1, 3, 4, 6]; its channels are last, so "
        "save x.transpose(2, 0, 1)",
    ),
    ("mixed", ONE, "{d}/mixed: holds 1 images and 1 arrays; keep one kind, nothing says which are the samples"),
    ("forms", ONE, "{d}/forms: holds both .npy and .npz; keep one kind, since nothing says which are the samples"),
    (
        "arrays",
        TWO,
        "{d}/arrays: .npy files of one directory feed one input, the model has 2 (x, ids); make a directory of .npy for each, "
        "named like the input, or .npz files",
    ),
    (
        "other",
        ONE,
        "{d}/other/a.npy: input 'x' has shape [1, 3], the model takes [2, 3]; resize it, or bind other dimensions with --shape",
    ),
    (
        "images",
        IMAGE,
        "{d}/images: images need to be scaled as the model was trained, and there is no preprocess.yaml; write one, such as\n"
        "  mean: [123.675, 116.28, 103.53]  # x = (pixel - mean) / std, pixels 0..255\n  std: [58.395, 57.12, 57.375]",
    ),
    ("images", TWO, "{d}/images: images feed one input, the model has 2 (x, ids); give an .npz"),
    ("g.py", ONE, "{d}/g.py: which function yields the samples? Write {d}/g.py:FUNCTION"),
    ("absent.py:make", ONE, "{d}/absent.py: no such file or directory; it was given as file.py:function"),
    (
        "g.py:nothin",
        ONE,
        "{d}/g.py: no function 'nothin' (functions: nothing, fails, wrong, number, wrong_name); did you mean \"nothing\"?",
    ),
    ("g.py:nothing", ONE, "{d}/g.py:nothing: yields 0 samples; calibration needs at least 1"),
    ("g.py:fails", ONE, "{d}/g.py:fails: sample 1: ZeroDivisionError: division by zero (line 6); mend the generator"),
    (
        "g.py:wrong",
        ONE,
        "{d}/g.py:wrong: sample 0: input 'x' has shape [2, 4], the model takes [2, 3]; resize it, "
        "or bind other dimensions with --shape",
    ),
    ("g.py:number", ONE, "{d}/g.py:number: TypeError: 'int' object is not iterable; it must return an iterable of samples"),
    ("syntax.py:make", ONE, "{d}/syntax.py: SyntaxError: invalid syntax (line 1); the file must import cleanly"),
]


@pytest.mark.parametrize(("spec", "inputs", "text"), BAD_DATA, ids=[spec for spec, _, _ in BAD_DATA])
def test_bad_data(tmp_path: Path, spec: str, inputs, text: str) -> None:
    write_bad_data(tmp_path)
    with pytest.raises(CompileError) as caught:
        collect(open_data(f"{tmp_path}/{spec}", inputs))
    assert str(caught.value) == text.replace("{d}", str(tmp_path))


def test_unreadable_image(tmp_path: Path) -> None:
    write_bad_data(tmp_path)
    with pytest.raises(CompileError, match=re.escape(f"{tmp_path}/broken/a.png: no readable image: cannot identify image file")):
        collect(open_data(tmp_path / "broken", IMAGE, preprocess=Preprocess()))


def test_limit_and_no_inputs() -> None:
    with pytest.raises(CompileError, match=r"^calibration data: limit 0 leaves no samples; give at least 1$"):
        open_data("x.npz", ONE, limit=0)
    with pytest.raises(CompileError, match=r"^calibration data: the model has no inputs, so there is nothing to feed"):
        open_data("x.npz", {})


def test_bad_preprocess(tmp_path: Path) -> None:
    path = tmp_path / "preprocess.yaml"
    path.write_text("mean: [1, 2, 3, 4]\nstd: 0\nfitt: crop\nresample: cubic\n")
    with pytest.raises(ConfigError) as caught:
        read_preprocess(path)
    assert caught.value.faults == [
        f"{path}:1: mean: must have 3 entries, got 4",
        f"{path}:2: std: must be more than 0, got 0",
        f'{path}:3: fitt: no such key; did you mean "fit"?',
        f"{path}:4: resample: must be one of 'nearest', 'bilinear', 'bicubic', 'lanczos'; got 'cubic'",
    ]


def _refusal(array: np.ndarray, t: TensorType, in_file: bool) -> str | None:
    """Return the sentence that refuses an array of samples, or one sample where `in_file` is false; None: it fits."""
    try:
        if in_file:
            count_samples("x.npz", "image", array.shape, t)
        else:
            fit_array(array, "image", t, "x.npy")
    except CompileError as error:
        return str(error)
    return None


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("leading", [(), (1,), (2,), (3,), (4,), (3, 1), (3, 2)])
def test_advice_to_transpose_is_true_when_followed(leading: tuple[int, ...], batch: int, in_file: bool) -> None:
    t = TensorType((batch, 3, 4, 6), "float32")
    x = np.zeros((*leading, 4, 6, 3), np.float32)
    refusal = _refusal(x, t, in_file)
    assert refusal is not None
    advice = re.search(r"its channels are last, so save (x\.transpose\([0-9, ]+\)(?:\[None\])?)(.*)", refusal)
    assert advice, refusal
    rest = _refusal(eval(advice[1], {"x": x}), t, in_file)
    assert advice[2] == ("" if rest is None else " and resize its batch, or bind other dimensions with --shape"), rest


def test_rows_for_an_input_without_rows_are_refused() -> None:
    with pytest.raises(CompileError, match="has 5 rows, no multiple of the batch 0; drop the odd rows"):
        count_samples("x.npz", "x", (5, 4), TensorType((0, 4), "float32"))
    assert count_samples("x.npz", "x", (0, 4), TensorType((0, 4), "float32")) == 0
