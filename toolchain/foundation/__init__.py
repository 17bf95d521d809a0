"""Serve every part of the toolchain: files written whole, cancellation, onnxruntime, sets of shapes, tables of modules."""
