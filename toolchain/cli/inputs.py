"""Which files a command reads, named as its refusals name them: none of them may be overwritten."""

from __future__ import annotations

from pathlib import Path

from toolchain.cli.application import Paths
from toolchain.hw import machine_files


def model_inputs(model: Path) -> dict[str, Paths]:
    """An ONNX model and its external data. Raises CompileError when it is none."""
    from toolchain.frontend import model_files

    file, *weights = model_files(model)
    return {"the model": file, "the weights of the model": weights}


def machine_inputs(hw: str | None) -> dict[str, Paths]:
    """A machine and its instruction table. Raises ConfigError when there is none, or no YAML."""
    if hw is None:
        return {}
    file, table = machine_files(hw)
    return {"--hw": file, "the instruction table of --hw": table}


def data_inputs(option: str, data: str | None) -> dict[str, Paths]:
    """Calibration data as `quant.data.open_data` takes it."""
    from quant.data import data_files

    if data is None:
        return {}
    files = data_files(data)
    return {option if len(files) == 1 else f"a file of {option}": files}
