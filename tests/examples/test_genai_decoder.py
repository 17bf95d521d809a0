"""The decoder as onnxruntime-genai writes it gives the answers of the standard form, with its caches in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.examples.test_decoder import MACHINE, both, modules, step_by_step, tokens
from tests.semantics.judge import sqnr_db
from toolchain.api import Build
from toolchain.runtime import EntriesSession, Session
from toolchain.schedule.region_planner import RegionPlanner

STEPS = 24


def built(tmp_path: Path, bits: int | None, packed: bool) -> Build:
    """Build for one token and for a chunk."""
    _, generated = modules()
    form = replace(generated.FORMS["genai"], model=lambda: generated.make_genai.genai(bits, packed))
    return generated.built_for(MACHINE, tmp_path, form)


def written(data: bytes, form: str, backend: str = "reference", count: int = STEPS) -> np.ndarray:
    """Logits of every step."""
    session, feeds = Session(data, backend=backend, entry="decode"), modules()[1].FORMS[form].feeds
    return np.stack([session.run(None, feeds([token], step))[0][0, 0] for step, token in enumerate(tokens(1)[:count].tolist())])


def test_the_same_weights_give_the_same_bits(tmp_path: Path) -> None:
    both_of = built(tmp_path, None, False)
    assert np.array_equal(written(both_of.data, "genai"), written(both().data, "standard"))
    genai = both_of.entries["decode"]
    assert [t.name for t in genai.container.inputs] == ["input_ids", "attention_mask"]
    assert all(genai.figures[moved] == step_by_step().figures[moved] for moved in ("dram_read_bytes", "dram_write_bytes"))
    assert genai.figures["cycles"] < 1.03 * step_by_step().figures["cycles"]  # constants ahead save less of its order of layers


@pytest.mark.exhaustive
def test_without_constants_ahead_it_takes_the_cycles_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegionPlanner, "add_prefetch", lambda _, plan, most: plan)
    plain, standard = built(tmp_path, None, False), modules()[1].built_for(MACHINE, tmp_path)
    assert plain.entries["decode"].figures["cycles"] < 1.01 * standard.entries["decode"].figures["cycles"]


def test_weights_of_four_bits_and_one_product_for_queries_keys_and_values(tmp_path: Path) -> None:
    both_of, decoder_module = built(tmp_path, 4, True), modules()[0]
    genai = both_of.entries["decode"]
    states = genai.container.states
    assert [state.output for _, state in states] == [f"present.{i}.{kind}" for i in (0, 1) for kind in ("key", "value")]
    rows = sum(state.port.size_bytes // decoder_module.PLACES for _, state in states)
    logits = np.dtype(genai.container.graph.types["logits"].dtype)
    assert genai.figures["dram_write_bytes"] == rows + len(decoder_module.WORDS) * logits.itemsize
    assert [type(s).__name__ for s in genai.container.segments] == ["HostSubgraph", "Region"]
    model = modules()[1].Float(4)
    real = np.stack([model.run(token, step) for step, token in enumerate(tokens(1)[:STEPS].tolist())])
    got = written(both_of.data, "genai")
    assert sqnr_db(real, got) > 45 and np.array_equal(real.argmax(-1), got.argmax(-1))
    assert np.array_equal(written(both_of.data, "genai", "simulator", 2), got[:2])
    _, generated = modules()
    session, form, text = EntriesSession(both_of.data, backend="reference"), generated.FORMS["genai"], tokens(1)[:STEPS].tolist()
    runs = generated.runs_of(STEPS)
    at_once = np.concatenate([session.run(None, form.feeds(text[a:b], a))[0][0] for a, b in runs])
    assert sqnr_db(got, at_once) > 60  # a softmax of 16 bits leaves a code or two where it is masked
