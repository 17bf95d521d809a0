"""The quantizer. Its modules are its interface: data, calibrate, structure, file, parameters, error, fake_quant; fixed_point."""
