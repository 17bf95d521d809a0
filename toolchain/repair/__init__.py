"""Repair of a quantized network: steps, each a function from one quantization to another (docs/repair.md)."""
