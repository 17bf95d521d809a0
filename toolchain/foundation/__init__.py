"""Hold what every part of the toolchain may use: atomic files, cancellation, onnxruntime, entry points, tables of modules."""
