"""What a reader of a build's figures must not overlook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolchain.errors import counted

MUCH = 0.05  # of a model's products; more of them on the host is worth a warning
FEW_SAMPLES = 16
QDQ = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def host_warnings(host: Mapping[str, Any], nodes: Sequence[tuple[str, str]]) -> list[str]:
    """host: of the figures; nodes: (name, operator) of the model's own."""
    share = f"{100 * host['mac_share']:.1f} % of the model's MACs run on the HOST"
    quantized = sum(op in QDQ for _, op in nodes)
    if quantized and host["nodes"]:
        what = f"the model is quantized already ({counted(quantized, 'QuantizeLinear or DequantizeLinear node')})"
        return [f"{what}, which is not taken yet: {share}, and the cycles leave them out; build the float model it was made from"]
    if host["mac_share"] > MUCH:
        return [f"{share}, and the cycles leave them out; --explain says why"]
    return []


def calibration_notes(samples: int | None) -> list[str]:
    """samples: of the user's own data, None where there were none."""
    if samples is None or samples >= FEW_SAMPLES:
        return []
    return [f"calibrated on {counted(samples, 'sample')}; ranges of fewer than {FEW_SAMPLES} may not hold for other data"]
