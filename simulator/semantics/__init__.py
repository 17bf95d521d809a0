"""Define what each machine operation does to the bytes of the memories: one file for each kind.

A file's VALUES maps operation classes to functions (operation, context) that read and write the context's memories.
`simulator.execute` discovers the files of this folder; addresses have been checked before.
"""
