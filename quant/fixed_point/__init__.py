"""Every number a chip can compute: pure functions on numpy arrays, bit for bit. Imports nothing of the project."""

from quant.fixed_point.conv import ConvWeights, conv1d, conv2d, conv_transpose2d
from quant.fixed_point.elementwise import add, add_direct, concatenate, leaky_relu, mul, prelu, rescale
from quant.fixed_point.errors import FixedPointError, ScaleRangeError
from quant.fixed_point.matmul import matmul
from quant.fixed_point.pad import PadMode, pad
from quant.fixed_point.pool import (
    average_pool_tflite,
    average_pool_tosa,
    max_pool,
    mean_sum,
    pool_counts,
    pool_sum,
    tflite_mean_requant,
    tosa_reciprocal,
)
from quant.fixed_point.products import Matrix, ProductMethod, product
from quant.fixed_point.requant import Requant, identity_requant, make_requant, requantize, wrap_to_bits
from quant.fixed_point.resize import (
    CoordinateMode,
    LinearAxis,
    NearestMode,
    bilinear_sums,
    linear_axis_onnx,
    linear_axis_tflite,
    linear_axis_tosa,
    nearest_indices,
    nearest_indices_tflite,
    nearest_indices_tosa,
    resize_bilinear_tflite,
    resize_nearest,
    upsample_nearest,
)
from quant.fixed_point.rounding import Rounding, round_shift, round_shift_wide
from quant.fixed_point.scale import Scale, ScaleForm, choose_scale, float32_bits, float32_from_bits

__all__ = [
    "ConvWeights",
    "CoordinateMode",
    "FixedPointError",
    "LinearAxis",
    "Matrix",
    "NearestMode",
    "PadMode",
    "ProductMethod",
    "Requant",
    "Rounding",
    "Scale",
    "ScaleForm",
    "ScaleRangeError",
    "add",
    "add_direct",
    "average_pool_tflite",
    "average_pool_tosa",
    "bilinear_sums",
    "choose_scale",
    "concatenate",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "float32_bits",
    "float32_from_bits",
    "identity_requant",
    "leaky_relu",
    "linear_axis_onnx",
    "linear_axis_tflite",
    "linear_axis_tosa",
    "make_requant",
    "matmul",
    "max_pool",
    "mean_sum",
    "mul",
    "nearest_indices",
    "nearest_indices_tflite",
    "nearest_indices_tosa",
    "pad",
    "pool_counts",
    "pool_sum",
    "prelu",
    "product",
    "requantize",
    "rescale",
    "resize_bilinear_tflite",
    "resize_nearest",
    "round_shift",
    "round_shift_wide",
    "tflite_mean_requant",
    "tosa_reciprocal",
    "upsample_nearest",
    "wrap_to_bits",
]
