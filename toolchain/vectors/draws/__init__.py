"""Cases of each operation, one file a family, found by being here: CASES says which draws are an operation's."""
