"""The commands of `jitm`, one module each, and what users type for them, in `usage`; `jitm.commands.cli` dispatches."""
