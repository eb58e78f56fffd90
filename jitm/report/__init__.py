"""Reports and figures from the saved logs, similarities and vectors of runs, never from a model: `jitm report`."""
