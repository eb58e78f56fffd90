"""Configs: named objects, type hints of values, and changes by the command line."""
