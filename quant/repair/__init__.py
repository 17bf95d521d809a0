"""Repair of a quantized network: numerics that know arrays and machines' numbers, no graph passes (docs/repair.md)."""
