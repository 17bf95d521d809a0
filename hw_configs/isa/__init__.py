"""The instruction tables that the shipped machines name."""
