"""Reports and figures from what runs have written, never from a model: `python -m jitm.analysis`."""
