"""The quantizer: calibrates a float ONNX model on data, and turns ranges and weights into scales, zero points and codes.

Nothing is exported here; users import its modules. `calibration_data` opens the data and `calibrate` measures ranges.
`structural_ranges` adjusts them, `parameters` turns them into qparams, and `file` reads and writes the parameters file.
`repair` holds the numerics of repair, and `fixed_point` the machine's integer arithmetic.
"""
