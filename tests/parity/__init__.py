"""jitm against PyTorch, each comparison within the difference that docs/notes/parity.md states for it."""
