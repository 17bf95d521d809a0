"""The test cases of each operation, one file for a family of operations; a file is found by being here.

`CASES` of a file maps an operation's class to a function that yields (name of the case, draw). A draw is a function of
the `CaseBuilder`: it places operands and appends operations. Its docstring is the text about the case in index.json. It
raises NotApplicable where the machine cannot have the case.
"""
