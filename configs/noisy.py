"""Training with noisy correspondence: RCL, CRCL and NCR, and the losses that they are compared with.

`data.noise_rate` or `data.noise_file` mixes captions, see docs/noise.md; without them the data keep their own noise.

Example: --config noisy:sgr,rcl,f30k --config.data.noise_rate=0.4 --config.data.noise_of=images
"""

from ml_collections import ConfigDict

from jitm.configs import common, load

NETWORK = {  # presets, but for the data
    'sgr': 'sgraf:sgr,',
    'saf': 'sgraf:saf,',
    'scan': 'scan:t2i,avg,',
    'imram': 'imram:both,',
    'gsmn': 'gsmn:',
    'vsrn': 'vsrn:',
    'mean': 'vse:mean,max,',  # in no paper
    'fc': 'vse:fc,max,',  # CRCL
}
METHOD = ('rcl', 'crcl', 'ncr', 'warm_up', 'mean_max', 'decl', 'ladder')
LAST = dict(epochs=32, learning_rate=5e-4, decay_epochs=17)  # the last of CRCL's trainings, two epochs of it warm-up
NCR = {
    'f30k': dict(epochs=40, learning_rate=2e-4, decay_epochs=30),
    'coco': dict(epochs=20, learning_rate=2e-4, decay_epochs=10),
}
SCHEDULE = {
    'rcl': common.SCHEDULE,
    'crcl': dict.fromkeys(common.DATA, LAST),
    'ncr': NCR,
    'warm_up': NCR,
    'mean_max': NCR,
    'decl': common.SCHEDULE | {'f30k': dict(epochs=40, learning_rate=2e-4, decay_epochs=20)},
    'ladder': dict.fromkeys(common.DATA, common.SCHEDULE['f30k']),
}
WARM_UP = {'f30k': 5, 'coco': 10}  # epochs of NCR


@common.preset(NETWORK, METHOD, common.DATA)
def get_config(network: str, method: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = load(NETWORK[network] + data)
    config.drop_last = True
    common.set_schedule(config, **SCHEDULE[method][data])
    if (network, method, data) == ('sgr', 'rcl', 'f30k'):  # by the README of RCL
        common.set_schedule(config, epochs=40, learning_rate=2e-4, decay_epochs=30)
    if method == 'crcl':
        config.augmentation.update(drop_regions=0.2, change_words=0.0 if 'caption' in config.terms else 0.2)
        config.optimizer.weight_decay = 0.01  # PyTorch's default
    learn(config, method, warm_up=WARM_UP[data])
    return config


def learn(config: ConfigDict, method: str, warm_up: int) -> None:
    """Makes the method train a config; NCR warms up for some epochs, and trains with all pairs in the second half."""
    losses = common.NOISY | {'warm_up': common.NOISY['mean'], 'mean_max': common.LOSS['max']}
    common.rank_with(config, losses[method])
    if method == 'crcl':
        config.labels = dict(source='MovingAverage')
    if method == 'ladder':
        config.relevance = dict(source='cider.from_captions')
    if method in ('ncr', 'mean_max'):
        config.terms.ranking.start_epoch = warm_up
        config.terms = dict(warm_up=common.term(common.NOISY['mean'], end_epoch=warm_up), **config.terms.to_dict())
    if method == 'ncr':
        config.labels = dict(source='CoTeaching', warm_up_epochs=warm_up, noisy_epoch=config.epochs // 2)
        target = config.members.target.to_dict()
        config.members = dict(other=target, target=target)
