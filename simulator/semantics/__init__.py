"""What each machine operation does to the bytes of the memories: one file an operation, found by being here."""
