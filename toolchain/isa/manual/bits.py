"""Write bits and values of fields for manuals."""

from __future__ import annotations

from toolchain.isa.encoding import BitField


def bits_text(bits: tuple[int, int]) -> str:
    """`7:0`, or `3` of one bit."""
    return f"{bits[0]}:{bits[1]}" if bits[0] != bits[1] else f"{bits[0]}"


def bits_named(bits: tuple[int, int]) -> str:
    """`bits 7:0`, or `bit 3`."""
    return f"{'bits' if bits[0] != bits[1] else 'bit'} {bits_text(bits)}"


def value_text(s: BitField) -> str:
    """Return how a field's value follows from what is stored."""
    text = "signed" if s.signed else "stored"
    text += f" * {s.step}" if s.step != 1 else ""
    return f"{text} {'+' if s.bias > 0 else '-'} {abs(s.bias)}" if s.bias else text


def place_text(s: BitField) -> str:
    """Return the text of where a field lies."""
    return bits_text((s.low + s.width - 1, s.low)) + (f" of {s.register}" if s.register else "")
