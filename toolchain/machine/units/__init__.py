"""Closed forms for the time of each kind of unit: MAC arrays, DMA channels, vector engines."""
