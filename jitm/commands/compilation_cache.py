"""The persistent compilation cache of JAX, on by default: a second start of a setting loads what the first compiled."""

import os
from pathlib import Path

from jitm.files import cache_home


def folder() -> Path:
    """Returns the folder of compiled programs: `jitm/compiled` in XDG_CACHE_HOME, by default `~/.cache`."""
    return cache_home() / 'compiled'


def configure(enabled: bool) -> None:
    """Turns the cache on or off; must come before anything is compiled.

    A folder that JAX already has, such as that of JAX_COMPILATION_CACHE_DIR, is kept. A folder that cannot be written
    leaves the cache off.

    Args:
      enabled: whether compiled programs are kept and read.
    """
    import jax  # not every command needs it

    if not enabled:
        jax.config.update('jax_enable_compilation_cache', False)
        return
    if jax.config.jax_compilation_cache_dir is not None:
        return
    path = folder()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(path, os.W_OK | os.X_OK):
        return
    jax.config.update('jax_compilation_cache_dir', str(path))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
