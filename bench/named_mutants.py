"""Lists faults worth decibels that people made by hand: each is a text that stands once in its file, and its replacement.

A test holds that each text is still there: who rewrites such a line carries the fault over to the new one.
"""

from __future__ import annotations

from pathlib import Path

from mutations import Mutant

OPS, FRONT, PASSES, FIXED = "toolchain/ops", "toolchain/frontend", "toolchain/passes", "quant/fixed_point"
MACHINE = "toolchain/machine/operations"

NAMED: tuple[tuple[str, str, str, str], ...] = (
    (
        "MatMul's output zero point dropped",
        f"{OPS}/matrix_product.py",
        '"matrix_product", codes, y.zero_point, low',
        '"matrix_product", codes, 0, low',
    ),
    (
        "Mul with the scale of one operand",
        f"{OPS}/elementwise/select_elementwise.py",
        "product_scale(a.scale, b.scale, y.scale",
        "product_scale(a.scale, 1.0, y.scale",
    ),
    (
        "PRelu without the slope's scale",
        f"{OPS}/elementwise/select_elementwise.py",
        "a.scale / y.scale, a.scale * b.scale / y.scale",
        "a.scale / y.scale, a.scale / y.scale",
    ),
    (
        "a sum's operands exchange their scales",
        f"{OPS}/elementwise/select_elementwise.py",
        "inner_requant(b.scale / common",
        "inner_requant(a.scale / common",
    ),
    (
        "padded AveragePool counts what lies outside",
        f"{OPS}/pool/select_pool.py",
        "n, scope.requant(x.scale / (y.scale * n)",
        "n, scope.requant(x.scale / (y.scale * math.prod(self.geometry.kernel))",
    ),
    (
        "AveragePool as a convolution forgets a dimension",
        f"{OPS}/pool/select_pool.py",
        "mean_weight(kh * kw, numerics",
        "mean_weight(kh * kh, numerics",
    ),
    (
        "fused residual's zero points exchanged",
        f"{PASSES}/fuse.py",
        "Residual(zero[index], zero[1 - index]",
        "Residual(zero[1 - index], zero[index]",
    ),
    (
        "fused residual's scales exchanged",
        f"{PASSES}/fuse.py",
        "requants[index], requants[1 - index]",
        "requants[1 - index], requants[index]",
    ),
    (
        "8-bit table off by one",
        f"{FIXED}/pointwise/tables.py",
        "dtype=np.float64) + np.iinfo(dtype).min",
        "dtype=np.float64) + np.iinfo(dtype).min + 1",
    ),
    ("16-bit table off by one", f"{FIXED}/pointwise/tables.py", "dtype=np.float64) - 256)", "dtype=np.float64) - 255)"),
    (
        "table without the input's zero point",
        f"{FIXED}/pointwise/tables.py",
        "real = _evaluate(f, float(input_scale) * (codes - input_zero_point))\n    nearest",
        "real = _evaluate(f, float(input_scale) * codes)\n    nearest",
    ),
    (
        "Mul folded into the weights, not into the bias",
        f"{FRONT}/linear_rules.py",
        "scope.constant(base, (b * row).astype(w.dtype))",
        "scope.constant(base, b.astype(w.dtype))",
    ),
    ("Add folded in place of the bias", f"{FRONT}/linear_rules.py", "row if b is None else b + row", "row"),
    ("Gemm's beta dropped", f"{FRONT}/linear_rules.py", "if beta != 1:", "if False:"),
    ("Gemm's alpha dropped", f"{FRONT}/linear_rules.py", 'if a["alpha"] != 1 else y', "if False else y"),
    (
        "Softmax of opset 11 over one axis of two",
        f"{FRONT}/upgrade.py",
        "if prod(shape[axis + 1 :]) == 1 or axis >= len(shape):",
        "if True:",
    ),
    ("Clip of opset 6 without its max", f"{FRONT}/upgrade.py", 'for k in ("min", "max")}', 'for k in ("min", "min")}'),
    (
        "LayerNormalization's epsilon",
        f"{FRONT}/match_norms.py",
        "axis=axis, epsilon=root.epsilon,",
        "axis=axis, epsilon=1e-5,",
    ),
    (
        "BatchNormalization's epsilon dropped",
        f"{FRONT}/window_rules.py",
        'factor = scale / np.sqrt(var + n.op.attributes["epsilon"])',
        "factor = scale / np.sqrt(var)",
    ),
    ("a clamp's upper bound dropped", f"{OPS}/kit/operator.py", "    if bounds[1] is not None:\n", "    if False:\n"),
    ("a clamp's lower bound dropped", f"{OPS}/kit/operator.py", "    if bounds[0] is not None:\n", "    if False:\n"),
    (
        "a clamp's bound without the zero point",
        f"{OPS}/kit/operator.py",
        "np.rint(real / quant.scale) + quant.zero_point",
        "np.rint(real / quant.scale)",
    ),
    (
        "convolution's output scale inverted for its bias",
        "quant/parameters/biases.py",
        "codes = np.rint(real / (x.scale * weight.scales))",
        "codes = np.rint(real / weight.scales)",
    ),
    (
        "convolution's pads exchanged",
        f"{OPS}/convolution/select_convolution.py",
        "(pads[0], pads[1], pads[2], pads[3])",
        "(pads[1], pads[0], pads[3], pads[2])",
    ),
    (
        "parts of a Concat are not rescaled",
        f"{OPS}/rescale.py",
        "        if (scope.quant(name), scope.codes(name)) == (y, codes):\n",
        "        if True:\n",
    ),
    (
        "linear Resize's taps exchanged",
        f"{OPS}/resize.py",
        "1 - (at - lower_index), at - lower_index",
        "at - lower_index, 1 - (at - left)",
    ),
    (
        "accesses of the second operand dropped",
        f"{MACHINE}/elementwise.py",
        "used = where(self.kind == ElementwiseKind.RESCALE, 0, 1)",
        "used = 0",
    ),
    (
        "accesses of the addend dropped",
        f"{MACHINE}/addend.py",
        "*extent, False, in_step=True",
        "*extent[:2], 0, False, in_step=True",
    ),
    (
        "accesses of a product's second matrix: half of it",
        f"{MACHINE}/matrix_product.py",
        "(self._count_operands(self.b_batch_stride), self.inner, self.columns)",
        "(self._count_operands(self.b_batch_stride), self.inner // 2, self.columns)",
    ),
    (
        "granules by lines where a machine has surfaces",
        "toolchain/machine/tensors.py",
        'if maps.order == "surface":',
        'if maps.order != "surface":',
    ),
    (
        "a map in granules has the bytes of its own channels",
        "toolchain/machine/tensors.py",
        "-(-channels // maps.granule) * maps.granule * item_bytes",
        "channels * item_bytes",
    ),
    (
        "a convolution's input has the surface stride of its rows",
        f"{OPS}/convolution/tiles.py",
        '"input_surface_stride": site.strides.surface_bytes',
        '"input_surface_stride": site.strides[1]',
    ),
    (
        "accesses of a fused table dropped",
        f"{MACHINE}/window.py",
        "table = looked_up * table_bytes(self.code_types()[1], chip)",
        "table = 0",
    ),
)


def list_named_mutants(root: Path) -> list[Mutant]:
    """Return the mutants of the files below `root`. Raise ValueError where a text does not stand in its file once."""
    mutants = []
    for name, path, old, new in NAMED:
        text = (root / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(
                f"{name}: {old!r} stands {text.count(old)} times in {path}; carry the fault over to the line of today"
            )
        before = text[: text.index(old)]
        mutants.append(Mutant(path, "", before.count("\n") + 1, name, len(before.encode()), old, new))
    return mutants
