"""VSE(FC), VSE(MLP), RVSE(MLP) and RVSE++ with the losses of Li et al. (2023), SelHN among them.

`mean` is VSE(FC) with mean pooling of regions and words, `sum_max` the loss of VSE-infinity, `softmax` CLIP's at a
fixed temperature of 0.07, `softmax_learned` at a learned one, `softmax_queue` over a queue of past pairs (MoCo). None
of the five is in the paper.

Example: --config vse:rvse,selhn,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

MODEL = {  # figure 2: the MLP beside the fully connected layer of the regions
    'fc': 'none',
    'mlp': 'plain',
    'rvse': 'residual',
    'rvsepp': 'residual',  # with BERT
    'mean': 'none',  # without GPO
}
# Tables 1 and 3; sum_max: max after a sum.
LOSSES = ('selhn', 'max', 'sum', 'shn', 'sct', 'sum_max', 'softmax', 'softmax_learned', 'softmax_queue')


@common.preset(MODEL, LOSSES, common.DATA)
def get_config(model: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = default.get_config()
    config.data = common.DATA[data]
    config.drop_last = True
    config.augmentation.drop_regions = 0.2
    config.augmentation.change_words = 0.2
    config.model.image.mlp = MODEL[model]
    config.model.image.norm_padding = MODEL[model] != 'none'
    config.model.text.bidirectional = True
    config.model.image_pooling = config.model.text_pooling = 'mean' if model == 'mean' else 'gpo'
    common.rank_with(config, common.LOSS[{'sum_max': 'max', 'softmax_queue': 'softmax'}.get(loss, loss)])
    if loss == 'sum_max':
        common.sum_first(config, epochs=1)
    if loss == 'softmax_learned':
        config.model.initial_temperature = 0.07
    if loss == 'softmax_queue':
        common.queue(config)
    config.optimizer.weight_decay = 0.01  # PyTorch's default
    common.set_schedule(config, epochs=20, learning_rate=5e-4, decay_epochs=20)  # the rate of the ablations is constant
    if model == 'rvsepp':
        common.use_bert(config)
        common.set_schedule(config, epochs=30, learning_rate=5e-4, decay_epochs=15)
    return config
