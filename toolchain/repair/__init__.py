"""Calibrate and repair a quantized network: each step of repair is a function from one quantization to another
(docs/repair.md)."""
