"""jitm: image-text matching in JAX/Flax."""


def __getattr__(name: str) -> object:
    """`jitm.score`, imported when it is asked for: reading logs needs no model."""
    if name == 'score':
        from jitm.api import score

        return score
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
