"""The kinds of units, and the closed forms of their time."""
