"""Runs: checkpoints, loading a trained run, progress reports and interruption."""
