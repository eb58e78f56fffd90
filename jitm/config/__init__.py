"""Configs: what their keys name, type hints of their values, and changes by the command line."""
