"""The machine's integer arithmetic: pure functions on numpy arrays, bit for bit, which import nothing of the project.

The integer reference of the operators and the simulator both compute with it, and the quantizer chooses parameters for it.
`core` has rounding and requantization, `sums` convolutions, products and pools, `pointwise` functions element by element.
`curves` has softmax, norms and roots, `reference_ops` foreign implementations for comparison, `conformance` test vectors.
`compare.compare` and `softmax.softmax` bear the names of their modules: import them from there.
"""

from quant.fixed_point.conformance.draw import OPERATORS as KIT_OPERATORS
from quant.fixed_point.conformance.draw import Contents
from quant.fixed_point.conformance.vectors import VectorCase, make_vectors, read_vectors, replay, write_vectors
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.fixed_point_errors import FixedPointError, ScaleRangeError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import Requant, identity_requant, make_requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding, round_shift, round_shift_wide
from quant.fixed_point.core.scale import Scale, ScaleForm, choose_scale, float32_bits, float32_from_bits
from quant.fixed_point.core.weight_scaling import GroupForm, WeightScaling
from quant.fixed_point.core.widths import type_limits, wrap_to_bits
from quant.fixed_point.curves.curve_tables import CurveTable, exp_quantized, reciprocal_quantized, rsqrt_quantized
from quant.fixed_point.curves.norms import NormUnit, layer_norm, rms_norm
from quant.fixed_point.curves.polynomials import Polynomial, exp_polynomial, gelu_polynomial
from quant.fixed_point.curves.roots import divide, divide_quantized, integer_sqrt, rsqrt8, sqrt_quantized
from quant.fixed_point.curves.softmax import (
    SoftmaxUnit,
    log_softmax,
    log_softmax8,
    qlinear_softmax,
    softmax8,
    softmax16,
)
from quant.fixed_point.pointwise.compare import Relation, arg_max, arg_min, compare_scaled, tflite_compare8, top_k
from quant.fixed_point.pointwise.elementwise import add, add_direct, concatenate, leaky_relu, mul, prelu, rescale
from quant.fixed_point.pointwise.pad import PadMode, pad
from quant.fixed_point.pointwise.resize import (
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
from quant.fixed_point.pointwise.tables import TableForm, build_table8, build_table16, interpolate16, lookup8, lookup16
from quant.fixed_point.reference_ops.onnx_float import (
    dequantize_linear,
    qlinear_add,
    qlinear_average_pool,
    qlinear_concat,
    qlinear_leaky_relu,
    qlinear_mul,
    qlinear_table,
    quantize_linear,
)
from quant.fixed_point.reference_ops.tflite_activations import HardSwish, hard_swish8, hard_swish_parameters, logistic16, tanh16
from quant.fixed_point.sums.conv import ConvWeights, conv1d, conv2d, conv_transpose2d, finish_sums
from quant.fixed_point.sums.grouped_sums import WeightGroups
from quant.fixed_point.sums.matmul import matmul
from quant.fixed_point.sums.pool_sums import (
    average_pool_tflite,
    average_pool_tosa,
    max_pool,
    mean_sum,
    pool_counts,
    pool_sum,
    tflite_mean_requant,
    tosa_reciprocal,
)
from quant.fixed_point.sums.products import Matrix, ProductMethod, choose_method, product

__all__ = [
    "KIT_OPERATORS",
    "CodeType",
    "Contents",
    "ConvWeights",
    "CoordinateMode",
    "CurveTable",
    "FixedPointError",
    "GroupForm",
    "HardSwish",
    "LinearAxis",
    "Matrix",
    "NearestMode",
    "NormUnit",
    "Numerics",
    "PadMode",
    "Polynomial",
    "ProductMethod",
    "Relation",
    "Requant",
    "Rounding",
    "Scale",
    "ScaleForm",
    "ScaleRangeError",
    "SoftmaxUnit",
    "TableForm",
    "VectorCase",
    "WeightGroups",
    "WeightScaling",
    "add",
    "add_direct",
    "arg_max",
    "arg_min",
    "average_pool_tflite",
    "average_pool_tosa",
    "bilinear_sums",
    "build_table8",
    "build_table16",
    "choose_method",
    "choose_scale",
    "compare_scaled",
    "concatenate",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "dequantize_linear",
    "divide",
    "divide_quantized",
    "exp_polynomial",
    "exp_quantized",
    "finish_sums",
    "float32_bits",
    "float32_from_bits",
    "gelu_polynomial",
    "hard_swish8",
    "hard_swish_parameters",
    "identity_requant",
    "integer_sqrt",
    "interpolate16",
    "layer_norm",
    "leaky_relu",
    "linear_axis_onnx",
    "linear_axis_tflite",
    "linear_axis_tosa",
    "log_softmax",
    "log_softmax8",
    "logistic16",
    "lookup8",
    "lookup16",
    "make_requant",
    "make_vectors",
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
    "qlinear_add",
    "qlinear_average_pool",
    "qlinear_concat",
    "qlinear_leaky_relu",
    "qlinear_mul",
    "qlinear_softmax",
    "qlinear_table",
    "quantize_linear",
    "read_vectors",
    "reciprocal_quantized",
    "replay",
    "requantize",
    "rescale",
    "resize_bilinear_tflite",
    "resize_nearest",
    "rms_norm",
    "round_shift",
    "round_shift_wide",
    "rsqrt8",
    "rsqrt_quantized",
    "softmax8",
    "softmax16",
    "sqrt_quantized",
    "tanh16",
    "tflite_compare8",
    "tflite_mean_requant",
    "top_k",
    "tosa_reciprocal",
    "type_limits",
    "upsample_nearest",
    "wrap_to_bits",
    "write_vectors",
]
