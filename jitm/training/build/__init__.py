"""Builds the parts of a run from its config; each check stands beside the part it checks."""
