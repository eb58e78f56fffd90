"""VSE++ and VSE0, Order++ and Order0 (Faghri et al. 2018).

Example: --config configs/vsepp.py:vsepp,f30k
"""

from ml_collections import ConfigDict

from configs import common, default

SYSTEM = {  # section 3, tables 1 to 4: the loss, its margin, and the learning rate; Order: section 3.7
    'vsepp': dict(loss='max_of_hinges', margin=0.2, learning_rate=2e-4),
    'vse0': dict(loss='sum_of_hinges', margin=0.2, learning_rate=2e-4, normalize_images=False),
    'orderpp': dict(loss='max_of_hinges', margin=0.2, learning_rate=2e-4, name='vse.OrderEmbedding'),
    'order0': dict(loss='sum_of_hinges', margin=0.05, learning_rate=1e-3, name='vse.OrderEmbedding', absolute=True),
}
DATA = {
    **common.DATA,
    '10crop': dict(common.DATA['coco'], root='data/10crop_precomp'),  # COCO, mean features of ten crops
}

SETTINGS = {
    'vse0,f30k': (('VSE0', 'f30k', 'VSE++ table 3', 'VGG19, 1C'),),
    'vsepp,f30k': (('VSE++', 'f30k', 'VSE++ table 3', 'VGG19, 1C'),),
    'vsepp,coco': (('VSE++', 'coco', 'VSE++ table 1', 'VGG19, 1C'),),
    'order0,10crop': (('Order0', 'coco', 'VSE++ table 4'),),
    'orderpp,10crop': (('Order++', 'coco', 'VSE++ table 4'),),
    'vse0,f8k': (),
    'vsepp,f8k': (),
}


def get_config(setting: str = 'vsepp,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    system, data = common.parse(setting, SYSTEM, DATA)
    arguments = dict(SYSTEM[system])
    config = default.get_config()
    config.data = DATA[data]
    config.terms.ranking.loss = f'ranking.{arguments.pop("loss")}'
    config.terms.ranking.margin = arguments.pop('margin')
    config.optimizer.learning_rate = arguments.pop('learning_rate')
    config.model.update(arguments)
    if data == 'f8k':
        common.reduce(config)
        if system == 'vsepp':
            common.sum_first(config, epochs=1)
    return config
