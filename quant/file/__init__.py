"""The parameters file: what calibration found, for people to edit and the build to take back."""

from quant.file.parameters import Parameters
from quant.file.read import read_parameters
from quant.file.write import render_parameters, write_parameters

__all__ = ["Parameters", "read_parameters", "render_parameters", "write_parameters"]
