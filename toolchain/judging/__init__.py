"""Judge a build: the data for it, the comparison with the reference and with float, and trials of what would be better."""
