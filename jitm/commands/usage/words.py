"""Distinguish captions from perturbed captions, and find and correct their mismatched words.

    jitm words --workdir runs/tags --split test --perturbations noun,number,relation
    jitm words --workdir runs/tags --split test --perturbations in_batch,retrieved,generated --texts 200 --show 5

Reads models with the word-level heads of TAGS-DC (Fan et al. 2022). Prints tables and writes words.json.
With --save_perturbed any model can train with these captions, see config key candidates.perturbations.
"""

from jitm.commands import flags as shared
from jitm.data.pairs.kinds import KINDS, MAX_PER_CAPTION, MIN_COUNT

REQUIRED = ('workdir', 'perturbations')
FLAGS = {
    **shared.common('workdir'),
    'perturbations': shared.words(f'Some of {", ".join(KINDS)}.'),
    'generator': shared.path("The run that generates the kind 'generated'; this run if not given."),
    **shared.common('split'),
    'texts': shared.count('The number of captions, evenly spaced; all if not given.'),
    'max_per_caption': shared.count('Perturbed captions of each kind for one caption.', MAX_PER_CAPTION),
    'seed': shared.number('The seed of the choice if there are more.', 0, lower_bound=0),
    'min_count': shared.count('The minimum number of occurrences of a replaced noun in the split.', MIN_COUNT),
    'concreteness': shared.path('A list of words with scores, to exchange concrete nouns only.', ''),
    'scene_graphs': shared.path('JSON of the scene graphs; parsed by rules if not given.', ''),
    'save_perturbed': shared.switch('Write the perturbed captions to perturbed.jsonl, to train with them.'),
    'perplexity': shared.switch('Also compute pseudo-perplexities with the head mlm.'),
    'show': shared.count('Show the words of this many captions of each kind.'),
    **shared.common('step', 'member', 'data_root', 'output', 'dtype', 'precision', 'memory_mb', 'compilation_cache'),
}
