"""Make the parameters of machine operations: each maker gives a field of an operation's dataclass.

Encodings, whose fields must hold these values, read the values here.
First instruction tables, manuals and the checks of a program do too.
A limit of the machine's YAML is named once, at the parameter that it limits.
"""
