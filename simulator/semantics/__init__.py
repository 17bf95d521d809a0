"""Define what each machine operation does to the bytes of the memories: one file for each operation, discovered
in this folder.
"""
