"""jitm: image-text matching in JAX/Flax.

    run = jitm.load('runs/demo')
    data = run.load_data('test')
    scores = run.similarity(run.encode_image(data.images), run.encode_text(data.captions))

See `jitm.api` for the methods of a loaded run, `jitm.losses` for the losses, `jitm.metrics` for recalls of any scores
and `jitm.configs` for the configs of presets.
"""

import importlib

__version__ = '0.3.0'

# Public name -> its module, imported at first use: `import jitm` alone imports neither jax nor a model.
_MODULES = {
    'Index': 'jitm.api',
    'configs': 'jitm.configs',
    'evaluate': 'jitm.api',
    'load': 'jitm.api',
    'losses': 'jitm.losses',
    'metrics': 'jitm.metrics',
    'score': 'jitm.api',
}

__all__ = ['Index', '__version__', 'configs', 'evaluate', 'load', 'losses', 'metrics', 'score']


def __getattr__(name: str) -> object:
    """Imports a public name."""
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module = importlib.import_module(_MODULES[name])
    value = module if _MODULES[name] == f'jitm.{name}' else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
