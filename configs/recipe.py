"""Combinations of the papers' methods on one dual encoder; which of them help is measured in docs/recipes.md.

Losses have the margin of the papers, 0.2, and the temperature of CLIP, 0.07. On Flickr8k a margin of 0.5 is better:
--config.terms.ranking.margin=0.5

Example: --config recipe:rvse,selhn,oss,offline,f8k
"""

from ml_collections import ConfigDict

from jitm.configs import common, dbl, vse

MODEL = ('mean', 'fc', 'rvse')  # in vse.py: mean pooling, GPO, GPO with a residual MLP
LOSSES = ('selhn', 'sum_max', 'softmax')  # in vse.py
ANCHOR = ('alone', 'oss')
DATA = ('f8k', 'f30k', 'coco', 'scenes')
NEGATIVES = ('in_batch', 'offline', 'perturbed', 'perturbed_offline')


@common.preset(MODEL, LOSSES, ANCHOR, NEGATIVES, DATA)
def get_config(model: str, loss: str, anchor: str, negatives: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = vse.get_config(f'{model},{loss},{data}')
    first = common.first_stage(config)
    if anchor == 'oss':
        dbl.boost(config, 'rm', 'oss')
    if negatives in ('perturbed', 'perturbed_offline'):
        common.perturb(config)
    if negatives in ('offline', 'perturbed_offline'):
        config.stages = dict(first=first, top_h_texts=300, top_h_images=60, fine_tune=False)
        config.augmentation.update(drop_regions=0.0, change_words=0.0)  # pairs with mined negatives are not augmented
        config.terms.offline = common.LOSS['onlyoffline'] | common.schedule_of_ranking(config)
    return config
