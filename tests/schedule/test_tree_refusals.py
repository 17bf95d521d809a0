"""Schedules that a network or machine cannot have are refused with the reason, all at once."""

from __future__ import annotations

import pytest

from tests.support.machine_variants import with_sram
from tests.support.schedule_round_trip import compiled
from toolchain.errors import CompileError
from toolchain.schedule.parser import parse_schedule

MACHINE = with_sram("edge16", 32)
CONV, NEXT, PROJECTION = "/b.0.1/b.0.1.0/Conv", "/b.1.0/b.1.0.0/Conv", "/b.1.2/Conv"


def _layer(name: str, *inside: str) -> str:
    """Loops stand in each other; rings before them."""
    lines, depth = [f'  layer "{name}"'], 2
    for line in inside:
        lines.append("  " * depth + line)
        depth += line.startswith("for ")
    return "\n".join(lines) + "\n"


REFUSED = {
    _layer("/b.0.1/b.0.1.0/Con", "call"): (
        '2: layer "/b.0.1/b.0.1.0/Con": there is no such layer; did you mean "/b.0.1/b.0.1.0/Conv"?'
    ),
    _layer(CONV, "for rows by 16", "call"): (
        f'2: layer "{CONV}": mac cannot run its tiles: needs 8192 accumulators, the machine has '
        "engines.mac.accumulators.entries=4096; take smaller steps"
    ),
    _layer(CONV, "for row by 2", "call"): f'3: layer "{CONV}": for row: it has no such loop; did you mean "rows"?',
    _layer(CONV, "for inner by 8", "for rows by 2", "call"): (
        f'3: layer "{CONV}": its loops stand as inner > rows; it has them as rows > inner'
    ),
    _layer(CONV, "for rows by 4", "for rows by 2", "call"): "\n".join(
        f'{line}: layer "{CONV}": for rows: stands there twice; one loop over an axis is all that tiles have' for line in (3, 4)
    ),
    _layer(CONV, "for rows by 4", "call on mcc"): f'2: layer "{CONV}": on mcc: there is no such unit; did you mean "mac"?',
    _layer(CONV, "for rows by 4", "call on vector"): f'2: layer "{CONV}": on vector: does not run this layer; mac can',
    _layer(CONV, "for rows by 4", "call dataflow is"): f'2: layer "{CONV}": dataflow is: mac has os',
    _layer(CONV, "ring constant 0 in wbuf", "for rows by 4", "call"): (
        f'3: layer "{CONV}": ring constant 0: there is no memory wbuf'
    ),
    _layer(CONV, "ring constant 0 in dram", "for rows by 4", "call"): (
        f'3: layer "{CONV}": ring constant 0: lies in sram, where mac reads it, and not in dram'
    ),
    _layer(CONV, "ring constant 4 in sram", "for rows by 4", "call"): (
        f'3: layer "{CONV}": ring constant 4: nothing passes through it; '
        "the layer has rings of constant 0, input 0, input 1, output"
    ),
    _layer(CONV, "for rows by 4", "call") + _layer("/b.0.0/b.0.0.0/Conv", "for rows by 4", "call"): (
        f'5: layer "/b.0.0/b.0.0.0/Conv": stands behind "{CONV}", before which it runs; layers keep the order of the network'
    ),
    _layer(CONV, "for rows by 4", "call") + _layer(CONV, "for rows by 4", "call"): f'5: layer "{CONV}": stands there twice',
    '  alloc "/Relu_output" in sram\n' + _layer(CONV, "for rows by 4", "call"): (
        '2: alloc "/Relu_output": the region has no such tensor; did you mean "/Relu_output_0"?'
    ),
    '  alloc "/Relu_output_0" in srm\n': (
        '2: alloc "/Relu_output_0": in srm: tensors lie in sram or dram; did you mean "sram"?'
    ),
    '  alloc "input@nhwc" in sram\n': '2: alloc "input@nhwc": is an input or output of the region, which lie in dram',
    '  alloc "/Relu_output_0" in sram rows 4\n': (
        '2: alloc "/Relu_output_0": rows are kept of tensors between layers in turns; no loop holds all that touch it'
    ),
    '  alloc "/Relu_output_0" in dram rows 4\n': (
        '2: alloc "/Relu_output_0": rows 4: latest rows are kept in sram; in dram it lies whole'
    ),
    '  alloc "/Relu_output_0" in sram\n' + _layer(CONV, "ring output in sram", "for rows by 4", "call"): (
        f'4: layer "{CONV}": ring output: "/Relu_output_0" lies in sram and is written there; leave out the ring or that alloc'
    ),
    _layer(CONV, "ring input 0 in sram slots 9", "for rows by 8", "call"): (
        f'2: layer "{CONV}": 65,024 bytes lie in sram while it runs, 32,256 more than memories.sram.size=32,768; '
        "take smaller steps or fewer slots, or let a tensor lie in dram"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    with pytest.raises(CompileError) as fault:
        compiled("resnet8_cifar", MACHINE, 2, parse_schedule("region 0\n" + text, "s"))
    assert str(fault.value) == "\n".join(f"s:{line}" for line in REFUSED[text].splitlines())


CASCADE = '  for rows by 2\n    layer "{}"\n      call\n    layer "{}"\n      call\n'
CASCADES = {
    CASCADE.format(PROJECTION, "/b.2.0/b.2.0.0/Conv"): (
        '2: for rows: layers that take turns follow one another; "/b.1.1/b.1.1.0/Conv" runs between them'
    ),
    CASCADE.format(PROJECTION, "/b.1.1/b.1.1.0/Conv").replace("by 2", "by 16"): (
        '2: for rows by 16: "/b.1.1/b.1.1.0/Conv" has 16 rows, which is one turn; take a smaller step'
    ),
    CASCADE.format(PROJECTION, "/b.1.1/b.1.1.0/Conv").replace("rows", "channels"): "2: for channels: layers take turns over rows",
    CASCADE.format("/AveragePool", "/fc/Gemm"): '2: for rows by 2: "/fc/Gemm" has 1 row, which is one turn; take a smaller step',
    '  alloc "/b.0.0/b.0.0.2/Relu_output_0" in sram rows 3\n' + CASCADE.format("/b.0.0/b.0.0.0/Conv", CONV): (
        '2: alloc "/b.0.0/b.0.0.2/Relu_output_0" rows 3: stripes of 2 rows need 4 of it at once; '
        "keep as many, or take a smaller step"
    ),
    '  alloc "/b.0.0/b.0.0.2/Relu_output_0" in sram rows 33\n' + CASCADE.format("/b.0.0/b.0.0.0/Conv", CONV): (
        '2: alloc "/b.0.0/b.0.0.2/Relu_output_0" rows 33: it has 32'
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", CASCADES)
def test_refusals_of_cascades(text: str) -> None:
    with pytest.raises(CompileError) as fault:
        compiled("resnet8_cifar", MACHINE, 2, parse_schedule("region 0\n" + text, "s"))
    assert str(fault.value) == f"s:{CASCADES[text]}"


def test_a_region_that_there_is_not_is_refused() -> None:
    with pytest.raises(CompileError) as fault:
        compiled("resnet8_cifar", MACHINE, 2, parse_schedule("region 3\nregion 0 level 4\n", "s"))
    assert str(fault.value) == "s:1: region 3: there is none; regions are 0"
    with pytest.raises(CompileError) as fault:
        compiled("resnet8_cifar", MACHINE, 2, parse_schedule("region 0 level 4 within 40000 sample\n", "s"))
    assert str(fault.value) == (
        "s:1: within 40,000: plans have 32,768 bytes of sram (memories.sram.size, --sram-budget)\n"
        "s:1: level 4: must be from 0 to 3\n"
        "s:1: sample: the region is not made sample by sample: control.repeat of the machine, and a batch of more than one"
    )
