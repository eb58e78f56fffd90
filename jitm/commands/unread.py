"""Keys of a config that nothing reads unless another key is set."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from jitm.config import FIRST, flatten

SWITCHES = {  # pattern -> keys; nothing reads what fits the pattern unless one of these is set
    'masking.*': ('masking.num_views',),
    'offline.*': ('offline.path', 'stages.top_h_texts', 'stages.top_h_images'),
    'synthesis.*': ('synthesis.generator',),
    'augmentation.keep_special_tokens': ('augmentation.change_words',),
}
READ_WITH = {  # pattern -> a key of the same section, and its values with which what fits the pattern is read
    'vocabulary.min_count': ('path', ('',)),
    'data.min_area': ('crop', ('random',)),
    '*model.*norm_padding': ('mlp', ('plain', 'residual', 'residual_on_input')),
    '*model.*lambda_lse': ('aggregation', ('LogSumExp',)),
    '*model.*bidirectional': ('recurrent', (True,)),
}


def unread(config: Mapping[str, Any], key: str) -> str | None:
    """Returns why nothing reads a dotted key of a config and what to do, for a message; None if it is read."""
    if key.startswith(FIRST):
        return unread(config['stages']['first'], key.removeprefix(FIRST))
    values = flatten(config)
    for pattern, switches in SWITCHES.items():
        if fnmatchcase(key, pattern) and key not in switches and not any(map(values.get, switches)):
            return f"is not read unless '{switches[0]}' is set: set both, or leave it out"
    for pattern, (name, readers) in READ_WITH.items():
        other = '.'.join((*key.split('.')[:-1], name))
        if fnmatchcase(key, pattern) and values.get(other, readers[0]) not in readers:
            return f"is not read where '{other}' is {values[other]!r}: change that, or leave it out"
    return None
