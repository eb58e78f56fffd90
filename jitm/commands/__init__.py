"""The commands of `jitm`, one module each; `jitm.commands.cli` dispatches them."""
