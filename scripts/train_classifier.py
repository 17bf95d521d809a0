#!/usr/bin/env python3
"""Train the bundled classifier on Fashion-MNIST and write examples/classifier/.

    `pip install -e .[train]`.
    `apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb fashion`.
    `python scripts/train_classifier.py fashion/usr/share/datasets/fashion-mnist --out examples/classifier`.

DATA is that folder of four gzipped IDX files, or the .npz that `scripts/fetch_zoo.py --only fashion_mnist` writes.
The .npz has x_train, y_train, x_test, y_test. The network is MobileNetV2's (Sandler et al. 2018) at 28 x 28.
It has inverted residuals with residual adds, depthwise convolutions and ReLU6.
Batch normalization is folded into the convolutions in float64 and the ONNX graph is written node by node.
The file therefore holds Conv, Clip, Add, GlobalAveragePool, Flatten and Gemm only.

The same seed, thread count, torch and kind of CPU give the same weights. One thread takes about 12 minutes.
"""

# The types of torch are unknown where it is not installed, as in the extra dev.
# pyright: basic

import argparse
import gzip
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from onnx_builder import GraphBuilder, fold_batch_norm
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from quant.float_session import open_session

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
OPSET = 13


@dataclass(frozen=True)
class Block:
    """One inverted residual: expand 1x1, depthwise 3x3 with `stride`, project 1x1 to `channels`."""

    expand: int
    channels: int
    stride: int


STEM_CHANNELS, HEAD_CHANNELS = 8, 128
BLOCKS = (
    Block(2, 24, 2),
    Block(3, 24, 1),
    Block(3, 40, 2),
    Block(4, 40, 1),
    Block(4, 40, 1),
    Block(4, 64, 1),
    Block(4, 64, 1),
)


@dataclass(frozen=True)
class Recipe:
    """A training recipe; the learning rate warms up linearly, then falls to zero as a cosine."""

    epochs: int = 6
    batch: int = 64
    learning_rate: float = 0.05
    warmup_fraction: float = 0.15
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.05
    shift_pixels: int = 1
    seed: int = 1
    threads: int = 1


@dataclass(frozen=True)
class Fashion:
    """The data set: images uint8[n, 28, 28], labels uint8[n] in 0..9."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.uint8]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.uint8]


# ------------------------------------------------------------------------------------------------ data
def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return uint8[sizes] of a gzipped IDX file of unsigned bytes (magic 0, 0, 8, rank; then big-endian sizes).

    End the program where it is another file.
    """
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: not an IDX file of unsigned bytes (magic {raw[:4].hex()}, expected 000008xx)")
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", rank, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(tuple(int(size) for size in shape))


def load_fashion(path: Path) -> Fashion:
    """Return DATA, an .npz or a folder of IDX files, as arrays; end the program with a hint where it is neither."""
    if path.is_dir():
        parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
        files = [path / f"{part}-ubyte.gz" for part in parts]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise SystemExit(f"{path}: lacks {', '.join(missing)}; see the head of {Path(__file__).name} for the data")
        return Fashion(*(read_idx(file) for file in files))
    if not path.is_file():
        raise SystemExit(f"{path}: no such file or directory; see the head of {Path(__file__).name} for how to get the data")
    with np.load(path) as data:
        return Fashion(data["x_train"], data["y_train"], data["x_test"], data["y_test"])


def scale(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the network's input: float32[n, 1, 28, 28] in [0, 1] from uint8[n, 28, 28]."""
    return images[:, None].astype(np.float32) / np.float32(255)


# ------------------------------------------------------------------------------------------------ network
class ConvNorm(nn.Module):
    """A convolution without bias, padded to keep the size at stride 1, and its batch normalization."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class InvertedResidual(nn.Module):
    """A block of MobileNetV2: float32[n, inputs, h, w] -> float32[n, block.channels, ceil(h / stride), ceil(w / stride)].

    It adds its input to its output where both have one shape.
    """

    def __init__(self, inputs: int, block: Block) -> None:
        super().__init__()
        hidden = inputs * block.expand
        self.expand = ConvNorm(inputs, hidden, 1)
        self.depthwise = ConvNorm(hidden, hidden, 3, block.stride, groups=hidden)
        self.project = ConvNorm(hidden, block.channels, 1)
        self.residual = block.stride == 1 and inputs == block.channels

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.relu6(self.expand(x))
        y = nn.functional.relu6(self.depthwise(y))
        y = self.project(y)
        return x + y if self.residual else y


class Classifier(nn.Module):
    """The network: float32[n, 1, 28, 28] in [0, 1] -> logits float32[n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        inputs = [STEM_CHANNELS, *(block.channels for block in BLOCKS)]
        self.stem = ConvNorm(1, STEM_CHANNELS, 3)
        self.blocks = nn.Sequential(*(InvertedResidual(c, block) for c, block in zip(inputs, BLOCKS)))
        self.head = ConvNorm(inputs[-1], HEAD_CHANNELS, 1)
        self.classify = nn.Linear(HEAD_CHANNELS, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.relu6(self.stem(x))
        y = nn.functional.relu6(self.head(self.blocks(y)))
        return self.classify(y.mean((2, 3)))


# ------------------------------------------------------------------------------------------------ training
def augment(images: Tensor, shift_pixels: int, rng: torch.Generator) -> Tensor:
    """Return the images float32[n, 1, h, w], each mirrored half of the time and shifted by up to `shift_pixels` both ways."""
    n, _, h, w = images.shape
    padded = nn.functional.pad(images, (shift_pixels,) * 4)[:, 0]
    dy, dx = torch.randint(0, 2 * shift_pixels + 1, (2, n, 1), generator=rng)
    mirrored = torch.rand(n, 1, generator=rng) < 0.5
    columns = torch.where(mirrored, torch.arange(w).flip(0), torch.arange(w)) + dx
    rows = torch.arange(h) + dy
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]][:, None]


def batches(data: Fashion, recipe: Recipe, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) of one epoch in random order, augmented; the last, smaller batch is left out."""
    order = torch.randperm(len(data.x_train), generator=rng)
    for start in range(0, len(order) - recipe.batch + 1, recipe.batch):
        index = order[start : start + recipe.batch].numpy()
        images = torch.from_numpy(scale(data.x_train[index]))
        yield augment(images, recipe.shift_pixels, rng), torch.from_numpy(data.y_train[index].astype(np.int64))


def train(data: Fashion, recipe: Recipe) -> Classifier:
    """Return the trained network in evaluation mode; print one line an epoch."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    rng = torch.Generator().manual_seed(recipe.seed)
    model = Classifier()
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks this overload
    optimizer = torch.optim.SGD(model.parameters(), momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        recipe.learning_rate,
        total_steps=recipe.epochs * (len(data.x_train) // recipe.batch),
        pct_start=recipe.warmup_fraction,
        cycle_momentum=False,
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    started_s = time.monotonic()
    for epoch in range(recipe.epochs):
        model.train()
        losses = []
        for images, labels in batches(data, recipe, rng):
            optimizer.zero_grad()
            loss = loss_of(model(images.contiguous(memory_format=torch.channels_last)), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        wall_s = time.monotonic() - started_s
        print(f"epoch {epoch + 1:2}  loss {np.mean(losses):.4f}  {wall_s:.0f} s, {cpu_s:.0f} CPU s", flush=True)
    return model.eval()


# ------------------------------------------------------------------------------------------------ export
def values(tensor: Tensor | None) -> NDArray[np.float32]:
    """Return a tensor as an array."""
    assert tensor is not None, "batch normalization here keeps running statistics"
    return tensor.detach().numpy()


def fold_norm(layer: ConvNorm) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weights [oc, ic / groups, kh, kw] and bias [oc] of a convolution with its batch normalization folded in."""
    norm = layer.norm
    tensors = (layer.conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return fold_batch_norm(*(values(tensor) for tensor in tensors), epsilon=norm.eps)


def emit_conv(graph: GraphBuilder, name: str, layer: ConvNorm, x: str, relu6: bool = True) -> str:
    """Add a convolution, and a clip to 0..6 with `relu6`, to the graph; return the output's name."""
    conv = layer.conv
    weights, bias = fold_norm(layer)
    inputs = [x, graph.constant(f"{name}.weight", weights), graph.constant(f"{name}.bias", bias)]
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
    y = graph.node("Conv", name, inputs, group=conv.groups, **shape)
    return graph.node("Clip", f"{name}.relu6", [y, "relu6.low", "relu6.high"]) if relu6 else y


def to_onnx(model: Classifier) -> onnx.ModelProto:
    """Return the checked model: input x float32[N, 1, 28, 28] in [0, 1], output logits float32[N, 10]."""
    graph = GraphBuilder("classifier")
    graph.scalar("relu6.low", 0)
    graph.scalar("relu6.high", 6)
    x = emit_conv(graph, "stem", model.stem, "x")
    for number, block in enumerate(model.blocks, 1):
        assert isinstance(block, InvertedResidual)
        y = emit_conv(graph, f"block{number}.expand", block.expand, x)
        y = emit_conv(graph, f"block{number}.depthwise", block.depthwise, y)
        y = emit_conv(graph, f"block{number}.project", block.project, y, relu6=False)
        x = graph.node("Add", f"block{number}.add", [x, y]) if block.residual else y
    x = emit_conv(graph, "head", model.head, x)
    x = graph.node("Flatten", "flatten", [graph.node("GlobalAveragePool", "pool", [x])], axis=1)
    weights = graph.constant("classify.weight", values(model.classify.weight))
    bias = graph.constant("classify.bias", values(model.classify.bias))
    graph.node("Gemm", "logits", [x, weights, bias], transB=1)
    doc = "MobileNetV2-style classifier of Fashion-MNIST: " + ", ".join(CLASSES)
    return graph.build({"x": ["N", 1, 28, 28]}, {"logits": ["N", len(CLASSES)]}, OPSET, doc)


# ------------------------------------------------------------------------------------------------ output
def accuracy(model: onnx.ModelProto, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> float:
    """Return the top-1 share in 0..1 of the exported graph in onnxruntime; it runs 500 images at a time."""
    session = open_session(model.SerializeToString())
    correct = 0
    for start in range(0, len(images), 500):
        part = slice(start, start + 500)
        logits = np.asarray(session.run(["logits"], {"x": scale(images[part])})[0])
        correct += int((logits.argmax(1) == labels[part]).sum())
    return correct / len(images)


def calibration_images(data: Fashion, count: int) -> NDArray[np.float32]:
    """Return the first training images of each class in turn, `count` in all, as the network's input."""
    by_class = [np.flatnonzero(data.y_train == label) for label in range(len(CLASSES))]
    picked = [by_class[i % len(CLASSES)][i // len(CLASSES)] for i in range(count)]
    return scale(data.x_train[np.array(picked)])


def write_example(model: onnx.ModelProto, data: Fashion, out: Path, calib: int, test: int) -> None:
    """Write classifier.onnx, calib.npz (x float32[n, 1, 28, 28]) and test.npz (x uint8[n, 28, 28], y uint8[n]) to `out`.

    `calib`, `test`: numbers of images.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "classifier.onnx").write_bytes(model.SerializeToString(deterministic=True))
    np.savez_compressed(out / "calib.npz", x=calibration_images(data, calib))
    np.savez_compressed(out / "test.npz", x=data.x_test[:test], y=data.y_test[:test])
    for name in ("classifier.onnx", "calib.npz", "test.npz"):
        print(f"{out / name}: {(out / name).stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the bundled Fashion-MNIST classifier and write its example.")
    parser.add_argument("data", type=Path, help="fashion_mnist.npz, or the folder of the four gzipped IDX files")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, e.g. examples/classifier")
    parser.add_argument("--epochs", type=int, default=Recipe.epochs)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    parser.add_argument("--calib", type=int, default=128, help="calibration images to ship")
    parser.add_argument("--test", type=int, default=2000, help="test images to ship")
    options = parser.parse_args()
    data = load_fashion(options.data)
    recipe = Recipe(epochs=options.epochs, seed=options.seed, threads=options.threads)
    model = to_onnx(train(data, recipe))
    parameters = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    print(f"{parameters} parameters")
    print(f"accuracy on {len(data.x_test)} test images: {accuracy(model, data.x_test, data.y_test):.4f}")
    shipped = accuracy(model, data.x_test[: options.test], data.y_test[: options.test])
    print(f"accuracy on the first {options.test}: {shipped:.4f}")
    write_example(model, data, options.out, options.calib, options.test)


if __name__ == "__main__":
    main()
