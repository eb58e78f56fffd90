"""Print what completes commands and flags in a shell.

    source <(jitm completion bash)                       for this shell; in ~/.bashrc for each
    jitm completion zsh > ~/.zsh/completions/_jitm       for a folder in zsh's fpath

Needs the extra `completion`.
"""

ARGUMENTS = 'SHELL'
FLAGS = {}
