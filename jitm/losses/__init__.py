"""Losses: pure functions of plain arrays, usable outside of the library."""
