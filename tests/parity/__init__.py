"""jitm against PyTorch, each comparison within the difference that docs/parity.md states for it."""
