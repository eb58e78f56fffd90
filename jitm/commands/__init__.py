"""The commands of `jitm`: flags, errors of one sentence and exit codes."""
