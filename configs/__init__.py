"""The settings: one file per system, `--config configs/FILE.py:WORDS`; `jitm settings` lists them."""
