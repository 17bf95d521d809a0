"""Makers of the parameters of machine operations: each returns a dataclass field that carries unit and allowed values.

Encodings, instruction tables, manuals and checks of programs read these values. The values are a function of the chip.
A limit of the machine's file is named once, at the parameter that it limits.
"""
