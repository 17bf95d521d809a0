#!/usr/bin/env python3
"""Build one network for many machines: the shipped ones, then edge16 with other arrays and less SRAM.

    `python examples/compare_machines.py [MODEL.onnx] [--calib DATA]`.

A machine is data: a variant is the YAML's text with a key changed, checked like any other file.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hw_configs
from toolchain.api import BuildOptions, CompileError, build, list_shipped_names

CLASSIFIER = Path(__file__).parent / "classifier"
OF_COLUMNS = ("columns", "weight_edge_bytes", "shared_outputs", "lanes")  # each a column's, so many
SHIPPED = Path(hw_configs.__path__[0])


def variants(folder: Path) -> Iterator[tuple[str, str]]:
    """(what it is, name or file) of every machine to compare."""
    for name in list_shipped_names():
        yield name, name
    plain = (SHIPPED / "edge16.yaml").read_text()
    for rows, columns, sram_kib in ((8, 8, 512), (32, 32, 512), (16, 16, 64), (16, 16, 24)):
        text = plain.replace(" rows: 16", f" rows: {rows}")
        for key in OF_COLUMNS:
            text = text.replace(f" {key}: 16", f" {key}: {columns}")
        file = folder / f"edge{rows}x{columns}_{sram_kib}k.yaml"
        file.write_text(text.replace("size: 512 KiB", f"size: {sram_kib} KiB"))
        yield f"edge16, {rows}x{columns}, {sram_kib} KiB SRAM", str(file)


HEAD = ("machine", "cycles", "ms", "MAC use", "SRAM peak", "DRAM bytes", "on the host")


def row(label: str, machine: str, model: Path, calibration: str) -> tuple[str, ...]:
    """Return a row of the table; of a machine that refuses the network it is the label and the reason."""
    try:
        figures = build(model, BuildOptions(machine, calibration, repair="none")).figures
    except CompileError as refusal:
        return (label, str(refusal).splitlines()[0])
    return (
        label,
        f"{figures['cycles']:,}",
        f"{1e3 * figures['seconds']:.3f}",
        f"{100 * figures['mac_utilization']:.1f} %",
        f"{figures['sram_peak_bytes']:,}",
        f"{figures['dram_read_bytes'] + figures['dram_write_bytes']:,}",
        str(len(figures["fallbacks"])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cycles of one network on many machines.")
    parser.add_argument("model", type=Path, nargs="?", default=CLASSIFIER / "classifier.onnx")
    parser.add_argument("--calib", default=str(CLASSIFIER / "calib.npz"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(label, machine, args.model, args.calib) for label, machine in variants(Path(folder))]
    reasons = {one[1] for one in rows}
    if len(reasons) == 1 and len(rows[0]) == 2:  # the model or the data, and no machine, is at fault
        print(*reasons, file=sys.stderr)
        sys.exit(2)
    width = max(len(one[0]) for one in rows)
    for label, *cells in (HEAD, *rows):
        print(label.ljust(width), cells[0] if len(cells) == 1 else "".join(cell.rjust(13) for cell in cells))


if __name__ == "__main__":
    main()
