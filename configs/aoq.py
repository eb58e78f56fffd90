"""Adaptive offline quintuplet losses (AOQ, Chen et al. 2020) on VSRN, BFAN, SCAN and VSE++, in two training stages.

The first stage trains VSRN, which mines the negatives. VSE++ is not in the paper.

Example: --config aoq:bfan_equal,adapoffquin,coco
"""

from itertools import product

from ml_collections import ConfigDict

from jitm.configs import common, load, scan

MODEL = {  # presets, but for the data
    'vsrn': 'vsrn:',
    'bfan_equal': 'bfan:equal,',
    'bfan_prob': 'bfan:prob,',
    **{f'scan_{way}_{mean}': f'scan:{way},{mean},' for way, mean in product(scan.DIRECTION, scan.AGGREGATION)},
    'vsepp': 'vsepp:vsepp,',
}
# The last one is AdapOffQuin from the trained model.
LOSSES = ('adapoffquin', 'offquin', 'offtri', 'onlinequin', 'onlyoffline', 'withoutadap', 'finetune')
ATTENTION = dict(epochs=15, learning_rate=5e-4, decay_epochs=10)
# The second stage, section 4.2.
SCHEDULE = {'vsrn': dict(epochs=20, learning_rate=2e-4, decay_epochs=10), 'bfan': ATTENTION, 'scan': ATTENTION}


@common.preset(MODEL, LOSSES, common.DATA)
def get_config(model: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    first = load(f'vsrn:{data}')
    config = load(MODEL[model] + data)
    if schedule := SCHEDULE.get(model.partition('_')[0]):
        first.epochs = 2 * first.optimizer.decay_epochs
        common.set_schedule(config, **schedule)
    return mine(config, first, model, 'vsrn', loss, data)


def mine(config: ConfigDict, first: ConfigDict, model: str, miner: str, loss: str, data: str) -> ConfigDict:
    """Trains a model with a loss of negatives found by the miner, whose config is the first stage's."""
    hinges = common.LOSS['adapoffquin' if loss == 'finetune' else loss]
    config.terms.ranking = hinges | common.schedule_of_ranking(config)
    if loss == 'finetune' and miner != model:  # one stage, from the model's own run, with the miner's negatives
        config.members.target.init_from = common.run_of(MODEL[model] + data)
        config.offline.path = common.run_of(f'aoq:{miner},adapoffquin,{data}') + '/candidates'
    else:
        stages = dict(top_h_texts=300, top_h_images=60, fine_tune=loss == 'finetune')
        config.stages = dict(first=common.first_stage(first), **stages)
    return config
