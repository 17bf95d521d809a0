"""Check that layers are judged in the file's numbers where equalization scales channels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import convolutions, plain, samples

from quant.fidelity import sqnr_db
from quant.float_session import FloatSession
from quant.repair.choices import Quantization
from toolchain.repair.channel_scaling import broadcast_factors
from toolchain.report.error_report import concat_parts, error_report, network_of
from toolchain.report.findings import AdviceContext
from toolchain.report.layer_errors import alone_values, measure_layers, weight_noise

SHAPE = (1, 3, 8, 8)


def test_figures_are_those_of_the_numbers_of_the_file(tmp_path: Path) -> None:
    """Channels whose factors span 64: what is lost of the small ones would be all that counts."""
    net, data = convolutions(tmp_path, "edge16", per_tensor=True), samples(SHAPE, 16)
    factors = {"c": np.geomspace(1 / 8, 8, 8)}
    through = net.through(Quantization({}, factors=factors))
    quantization = replace(plain(through, data), factors=factors)
    scaled = broadcast_factors(through.model.graph, factors)
    parts = concat_parts(through.selection.graph, through.origins)
    graphs = through.integer(quantization), through.graph, through.origins, parts, quantization.ranges
    network, as_held = (network_of(through.model, *graphs, factors=f) for f in (scaled, {}))
    session = through.session(quantization)
    runs = [(s, session.run_detailed(s).codes) for s in data[:1]]
    report, other = (error_report(n, runs, AdviceContext(net.chip, "minmax")) for n in (network, as_held))
    (row,), (unscaled_row,) = ([r for r in measurements.rows if r.tensor == "c"] for measurements in (report, other))
    (block,) = (b for b in network.blocks if network.shown[b.tensor].model == "c")
    measurements = measure_layers(network, runs)
    (real,) = FloatSession(net.model, ["c"]).run(data[0])
    alone = alone_values(measurements, block, measurements.records[0]) / scaled["c"]
    assert row.alone_db == pytest.approx(sqnr_db(real, alone), abs=0.01)
    quant, (values,) = network.quant(block.tensor), FloatSession(through.model, ["c"]).run(data[0])
    codes = np.clip(np.rint(values / quant.scale) + quant.zero_point, -128, 127)
    assert row.own_db == pytest.approx(sqnr_db(real, (codes - quant.zero_point) * quant.scale / scaled["c"]), abs=0.01)
    assert row.accumulated_db is not None and row.accumulated_db == pytest.approx(row.alone_db, abs=3)
    assert abs(unscaled_row.alone_db - row.alone_db) > 1 and abs(unscaled_row.own_db - row.own_db) > 1
    assert weight_noise(measurements, block) != pytest.approx(weight_noise(measure_layers(as_held, runs), block), rel=0.05)
