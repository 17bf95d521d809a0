"""The parameters file: a YAML file with what calibration and repair chose, which people edit and the build reads back."""

from quant.file.parameters import Parameters
from quant.file.read import read_parameters
from quant.file.write import render_parameters, write_parameters

__all__ = ["Parameters", "read_parameters", "render_parameters", "write_parameters"]
