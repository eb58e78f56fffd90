"""Reports from the logs of runs, never from a model: `python -m jitm.analysis`."""
