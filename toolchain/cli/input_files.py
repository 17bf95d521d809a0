"""List the files that a command reads, named as in its refusals: none of them may be overwritten."""

from __future__ import annotations

from pathlib import Path

from toolchain.cli.application import Paths
from toolchain.hw import machine_files


def model_inputs(*models: str | Path) -> dict[str, Paths]:
    """ONNX models and their external data. Raises CompileError when one is none."""
    from toolchain.frontend.read_onnx import model_files

    file_groups = [model_files(Path(model)) for model in models]
    return {"the model": [f[0] for f in file_groups], "the weights of the model": [w for f in file_groups for w in f[1:]]}


def machine_inputs(*machines: str | None) -> dict[str, Paths]:
    """Machines (None: not asked for) and their instruction tables. Raises ConfigError when one is not there, or no YAML."""
    file_pairs = [machine_files(hw) for hw in machines if hw is not None]
    return {
        "--hw": [file for file, _ in file_pairs],
        "the instruction table of --hw": [table for _, table in file_pairs if table],
    }


def data_inputs(option: str, data: str | None) -> dict[str, Paths]:
    """Calibration data as `quant.calibration_data.open_data` takes it."""
    from quant.calibration_data import data_files

    if data is None:
        return {}
    files = data_files(data)
    return {option if len(files) == 1 else f"a file of {option}": files}
