"""Writes ONNX graphs for public weights that come without one, for scripts/fetch_zoo.py.

Names in a graph are those of the weights, which are passed as {name: array} of a torch state dict.
"""

from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx_builder import GraphBuilder, fold_batch_norm

OPSET = 13
Weights = dict[str, NDArray[Any]]
LITE0_SIZE = 224
LITE0_STAGE_STRIDES = (1, 2, 2, 2, 1, 2, 1)
LITE0_EPSILON = 1e-3


def same_padding(size: int, kernel: int, stride: int) -> list[int]:
    """Return [top, left, bottom, right] of TensorFlow's SAME for a square image: the odd pixel goes below and right."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return [total // 2, total // 2, total - total // 2, total - total // 2]


def efficientnet_lite0(weights: Weights) -> onnx.ModelProto:
    """Return the network of input float32[1, 3, 224, 224], (rgb - 127) / 128, and logits float32[1, 1000].

    It is EfficientNet (Tan and Le 2019) without squeeze and swish; batch normalization is folded.
    """
    graph = GraphBuilder("efficientnet_lite0")
    bounds = [graph.scalar("relu6.low", 0), graph.scalar("relu6.high", 6)]

    def conv(x: str, name: str, norm: str, size: int, stride: int = 1, depthwise: bool = False, relu6: bool = True) -> str:
        bare = weights[f"{name}.weight"]
        parameters = [weights[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        folded, bias = fold_batch_norm(bare, *parameters, epsilon=LITE0_EPSILON)
        kernel = bare.shape[2]
        inputs = [x, graph.constant(f"{name}.w", folded), graph.constant(f"{name}.b", bias)]
        pads = same_padding(size, kernel, stride)
        group = bare.shape[0] if depthwise else 1
        y = graph.node("Conv", name, inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group)
        return graph.node("Clip", f"{name}.relu6", [y, *bounds]) if relu6 else y

    x = conv("input", "_conv_stem", "_bn0", LITE0_SIZE, stride=2)
    size, channels, stage, index = LITE0_SIZE // 2, 0, -1, 0
    while f"_blocks.{index}._depthwise_conv.weight" in weights:
        block = f"_blocks.{index}."
        outputs: int = weights[f"{block}_project_conv.weight"].shape[0]
        opens_stage = outputs != channels
        stage += opens_stage
        stride = LITE0_STAGE_STRIDES[stage] if opens_stage else 1
        y = conv(x, f"{block}_expand_conv", f"{block}_bn0", size) if f"{block}_expand_conv.weight" in weights else x
        y = conv(y, f"{block}_depthwise_conv", f"{block}_bn1", size, stride, depthwise=True)
        size, channels, index = -(-size // stride), outputs, index + 1
        y = conv(y, f"{block}_project_conv", f"{block}_bn2", size, relu6=False)
        x = y if opens_stage else graph.node("Add", f"{block}add", [x, y])
    x = conv(x, "_conv_head", "_bn1", size)
    x = graph.node("Flatten", "flatten", [graph.node("GlobalAveragePool", "pool", [x])], axis=1)
    dense = [graph.constant("_fc.w", weights["_fc.weight"]), graph.constant("_fc.b", weights["_fc.bias"])]
    graph.node("Gemm", "logits", [x, *dense], transB=1)
    return graph.build({"input": [1, 3, LITE0_SIZE, LITE0_SIZE]}, {"logits": [1, 1000]}, OPSET)


@dataclass(frozen=True)
class MtcnnGraph:
    """A builder of the layers of MTCNN's three nets (Zhang et al. 2016). Methods add a layer and return its output's name.

    Layers are named as their weights.
    """

    graph: GraphBuilder
    weights: Weights

    def layer(self, op: str, x: str, name: str, output: str, **attributes: Any) -> str:
        parameters = [self.graph.constant(f"{name}.{part}", self.weights[f"{name}.{part}"]) for part in ("weight", "bias")]
        return self.graph.node(op, output or name, [x, *parameters], **attributes)

    def conv(self, x: str, name: str, output: str = "") -> str:
        return self.layer("Conv", x, name, output)

    def dense(self, x: str, name: str, output: str = "") -> str:
        return self.layer("Gemm", x, name, output, transB=1)

    def prelu(self, x: str, name: str, spatial: bool = True) -> str:
        slope = self.weights[f"{name}.weight"].reshape((-1, 1, 1) if spatial else (-1,))
        return self.graph.node("PRelu", name, [x, self.graph.constant(f"{name}.slope", slope)])

    def pool(self, x: str, name: str, kernel: int) -> str:
        """Add a maximum over kernel x kernel with stride 2, whose output size is rounded up."""
        return self.graph.node("MaxPool", name, [x], kernel_shape=[kernel] * 2, strides=[2, 2], ceil_mode=1)

    def flatten(self, x: str) -> str:
        """Columns before rows before channels, the order in which the dense layers were trained."""
        return self.graph.node("Flatten", "flatten", [self.graph.node("Transpose", "whc", [x], perm=[0, 3, 2, 1])], axis=1)

    def softmax(self, x: str) -> str:
        return self.graph.node("Softmax", "prob", [x], axis=1)


def mtcnn_pnet(weights: Weights) -> onnx.ModelProto:
    """Return P-Net: x [1, 3, h, w] -> reg [1, 4, oh, ow] and prob [1, 2, oh, ow], of any size."""
    net = MtcnnGraph(GraphBuilder("mtcnn_pnet"), weights)
    x = net.pool(net.prelu(net.conv("x", "conv1"), "prelu1"), "pool1", 2)
    x = net.prelu(net.conv(x, "conv2"), "prelu2")
    x = net.prelu(net.conv(x, "conv3"), "prelu3")
    net.softmax(net.conv(x, "conv4_1"))
    net.conv(x, "conv4_2", "reg")
    return net.graph.build({"x": [1, 3, "h", "w"]}, {"reg": [1, 4, "oh", "ow"], "prob": [1, 2, "oh", "ow"]}, OPSET)


def mtcnn_rnet(weights: Weights) -> onnx.ModelProto:
    """Return R-Net: x [n, 3, 24, 24] -> reg [n, 4] and prob [n, 2]."""
    net = MtcnnGraph(GraphBuilder("mtcnn_rnet"), weights)
    x = net.pool(net.prelu(net.conv("x", "conv1"), "prelu1"), "pool1", 3)
    x = net.pool(net.prelu(net.conv(x, "conv2"), "prelu2"), "pool2", 3)
    x = net.flatten(net.prelu(net.conv(x, "conv3"), "prelu3"))
    x = net.prelu(net.dense(x, "dense4"), "prelu4", spatial=False)
    net.softmax(net.dense(x, "dense5_1"))
    net.dense(x, "dense5_2", "reg")
    return net.graph.build({"x": ["n", 3, 24, 24]}, {"reg": ["n", 4], "prob": ["n", 2]}, OPSET)


def mtcnn_onet(weights: Weights) -> onnx.ModelProto:
    """Return O-Net: x [n, 3, 48, 48] -> reg [n, 4], lmk [n, 10] and prob [n, 2]."""
    net = MtcnnGraph(GraphBuilder("mtcnn_onet"), weights)
    x = net.pool(net.prelu(net.conv("x", "conv1"), "prelu1"), "pool1", 3)
    x = net.pool(net.prelu(net.conv(x, "conv2"), "prelu2"), "pool2", 3)
    x = net.pool(net.prelu(net.conv(x, "conv3"), "prelu3"), "pool3", 2)
    x = net.flatten(net.prelu(net.conv(x, "conv4"), "prelu4"))
    x = net.prelu(net.dense(x, "dense5"), "prelu5", spatial=False)
    net.softmax(net.dense(x, "dense6_1"))
    net.dense(x, "dense6_2", "reg")
    net.dense(x, "dense6_3", "lmk")
    return net.graph.build({"x": ["n", 3, 48, 48]}, {"reg": ["n", 4], "lmk": ["n", 10], "prob": ["n", 2]}, OPSET)
