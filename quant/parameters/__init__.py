"""Computes a machine's qparams from calibrated ranges and float weights: scales, zero points, codes, biases, rounding offsets.

Ranges come from `quant.calibrate`; the operators of `toolchain.ops` call these functions when they are quantized.
"""

from quant.parameters.activations import SMALLEST_SCALE, activation_quant, least_error_range, quant_range, with_room
from quant.parameters.bias_offsets import Compensation, bias_compensation
from quant.parameters.biases import BiasQuant, RaisedScale, bias_quant
from quant.parameters.weight_codes import weight_code_range
from quant.parameters.weight_scales import SMALLEST_CHANNEL
from quant.parameters.weights import (
    WeightQuant,
    along,
    check_chosen_weight,
    chosen_rows,
    expressible_weight,
    product_scale,
    quantize_file_groups,
    requantize_weight,
    rescale_groups,
    weight_quant,
)

__all__ = [
    "SMALLEST_CHANNEL",
    "SMALLEST_SCALE",
    "BiasQuant",
    "Compensation",
    "RaisedScale",
    "WeightQuant",
    "activation_quant",
    "along",
    "bias_compensation",
    "bias_quant",
    "check_chosen_weight",
    "chosen_rows",
    "expressible_weight",
    "least_error_range",
    "product_scale",
    "quant_range",
    "quantize_file_groups",
    "requantize_weight",
    "rescale_groups",
    "weight_code_range",
    "weight_quant",
    "with_room",
]
