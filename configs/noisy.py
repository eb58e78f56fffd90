"""Training with captions of which some stand at the wrong image: RCL, CRCL and NCR, and what they are compared with.

`data.noise_rate` or `data.noise_file` mixes captions, see docs/noise.md; without them the noise is that of the data.

Example: --config noisy:sgr,rcl,f30k --config.data.noise_rate=0.4 --config.data.noise_of=images
"""

from ml_collections import ConfigDict

from jitm.configs import common, scan, sgraf, vse, vsrn

NETWORK = {  # the file and its words
    'sgr': (sgraf, 'sgr'),
    'saf': (sgraf, 'saf'),
    'scan': (scan, 't2i,avg'),
    'vsrn': (vsrn, ''),
    'mean': (vse, 'mean,max'),  # in no paper
    'fc': (vse, 'fc,max'),  # CRCL
}
METHOD = {
    'rcl': 'Hu et al. 2023: learns from negatives only',
    'crcl': 'Qin et al. 2023: RCL, and the positive as far as the model believes in it',
    'ncr': 'Huang et al. 2021: two models tell each other which pairs are clean',
    'warm_up': 'the mean of hinges, NCR without its second phase',
    'decl': 'Qin et al. 2022: the loss of evidence alone, without its choice of pairs',
    'ladder': 'Zhou et al. 2020: margins by the relevance of captions; not for noise',
}
SCHEDULE = {
    'rcl': {'f30k': dict(epochs=30, decay_epochs=15), 'coco': dict(epochs=20, decay_epochs=10)},
    'crcl': {'f30k': dict(epochs=32, decay_epochs=17), 'coco': dict(epochs=32, decay_epochs=17)},
    'ladder': {'f30k': dict(epochs=30, decay_epochs=15), 'coco': dict(epochs=30, decay_epochs=15)},
    'decl': {'f30k': dict(epochs=40, decay_epochs=20), 'coco': dict(epochs=20, decay_epochs=10)},
    'ncr': {'f30k': dict(epochs=40, decay_epochs=30), 'coco': dict(epochs=20, decay_epochs=10)},
}
WARM_UP = {'f30k': 5, 'coco': 10}  # epochs of NCR


@common.preset(NETWORK, METHOD, common.DATA)
def get_config(network: str, method: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    module, words = NETWORK[network]
    config = module.get_config(f'{words},{data}'.strip(','))
    config.drop_last = True
    schedule = SCHEDULE['ncr' if method == 'warm_up' else method][data]
    common.set_schedule(config, learning_rate=5e-4 if method == 'crcl' else 2e-4, **schedule)
    learn(config, method, warm_up=WARM_UP[data])
    return config


def learn(config: ConfigDict, method: str, warm_up: int) -> None:
    """Makes the method train a config; NCR warms up for some epochs, and trains with all pairs in the second half."""
    common.rank_with(config, common.NOISY['mean' if method == 'warm_up' else method])
    if method == 'crcl':
        config.labels = dict(source='MovingAverage', warm_up_epochs=2, momentum=0.8, minimum=0.1, temperature=0.05)
    if method == 'ladder':
        config.relevance = dict(source='cider.from_captions')
    if method == 'ncr':
        config.labels = dict(source='CoTeaching', warm_up_epochs=warm_up, noisy_epoch=config.epochs // 2, margin=0.2)
        ranking = dict(config.terms.ranking.to_dict(), start_epoch=warm_up)
        config.terms = dict(warm_up=common.term(common.NOISY['mean'], end_epoch=warm_up), ranking=ranking)
        target = config.members.target.to_dict()
        config.members = dict(other=target, target=target)
