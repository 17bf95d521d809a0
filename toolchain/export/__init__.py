"""Export the quantized network in formats of other tools."""
