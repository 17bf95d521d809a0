"""From ranges and weights to what a machine computes with: scales, zero points, codes, biases, rounding offsets."""

from quant.parameters.activations import SMALLEST_SCALE, activation_quant, least_error_range, quant_range, with_room
from quant.parameters.biases import BiasQuant, Enlarged, bias_quant
from quant.parameters.codes import weight_code_range
from quant.parameters.offsets import Compensation, bias_compensation
from quant.parameters.weight_scales import SMALLEST_CHANNEL
from quant.parameters.weights import (
    WeightQuant,
    along,
    chosen_rows,
    expressible_weight,
    given_groups,
    product_scale,
    regrouped,
    requantized,
    taken_weight,
    weight_quant,
)

__all__ = [
    "SMALLEST_CHANNEL",
    "SMALLEST_SCALE",
    "BiasQuant",
    "Compensation",
    "Enlarged",
    "WeightQuant",
    "activation_quant",
    "along",
    "bias_compensation",
    "bias_quant",
    "chosen_rows",
    "expressible_weight",
    "given_groups",
    "least_error_range",
    "product_scale",
    "quant_range",
    "regrouped",
    "requantized",
    "taken_weight",
    "weight_code_range",
    "weight_quant",
    "with_room",
]
