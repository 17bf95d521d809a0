"""What parameters of machine operations are made of: each maker gives a field of an operation's dataclass.

Encodings (their fields must hold these values), first instruction tables, manuals and the checks of a program read it
here; a limit of the machine's YAML is named once, at the parameter that it limits.
"""
