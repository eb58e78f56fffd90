"""VSE++ and VSE0, Order++ and Order0 (Faghri et al. 2018).

Example: --config vsepp:vsepp,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

SYSTEM = {  # section 3, tables 1 to 4: the loss, its margin, and the learning rate; Order: section 3.7
    'vsepp': dict(loss='max_of_hinges', margin=0.2, learning_rate=2e-4),
    'vse0': dict(loss='sum_of_hinges', margin=0.2, learning_rate=2e-4, normalize_images=False),
    'orderpp': dict(loss='max_of_hinges', margin=0.2, learning_rate=2e-4, name='vse.OrderEmbedding'),
    'order0': dict(loss='sum_of_hinges', margin=0.05, learning_rate=1e-3, name='vse.OrderEmbedding', absolute=True),
}
NETWORK = {  # of images; `features` are precomputed, by VGG19 as published: of one crop (1C) or ten (10crop)
    'features': {},
    'vgg19': dict(name='cnn.VGG19'),
    'resnet152': dict(name='cnn.ResNet', depth=152, train_norm=False),
    'squeezenet': dict(name='cnn.SqueezeNet'),  # small, for `f8k`
}
WEIGHTS = {  # of torchvision; resnet152 is its first version, IMAGENET1K_V1
    'vgg19': 'data/vgg19-dcbb9e9d.pth',
    'resnet152': 'data/resnet152-394f9c45.pth',
    'squeezenet': 'data/squeezenet1_1.npz',
}
TUNING = {  # of the network, section 3.2
    'frozen': 'keeps the weights of ImageNet',
    'finetuned': 'is trained, too, in a second stage, at a tenth of the rate',
    'scratch': 'is initialized randomly and trained',
}
DATA = {  # words that name photos where a network reads them (RC: random crops), and features otherwise
    **common.DATA,
    '10crop': dict(common.DATA['coco'], root='data/10crop_precomp'),  # COCO, mean features of ten crops
    'f8k_1c': dict(common.DATA['f8k'], root='data/f8k_1c_precomp'),  # of SqueezeNet, see docs/photos.md
    'f8k_10c': dict(common.DATA['f8k'], root='data/f8k_10c_precomp'),
    'coco_rv': {},  # with `restval` (rV)
}
PHOTOS = {
    'f30k': common.photos('data/f30k_photos'),
    'coco': common.photos('data/coco_photos', restval=False, max_captions=5),
    'coco_rv': common.photos('data/coco_photos', max_captions=5),
    'f8k': common.photos('data/f8k_photos', image_size=112, short_side=112, min_area=0.5),  # photos of 112 x 112
}

BACKBONE = {'vgg19': 'VGG19', 'resnet152': 'ResNet152'}
TABLE = {'f30k': 'VSE++ table 3', 'coco': 'VSE++ table 2', 'coco_rv': 'VSE++ table 2'}


def _rows(system: str, name: str, network: str, tuning: str, data: str) -> tuple:
    """Returns the published result of a network on photos."""
    tuned = ' fine-tuned' if tuning == 'finetuned' else ''
    crops = 'RC+rV' if data == 'coco_rv' else 'RC'
    return ((name, data.partition('_')[0], TABLE[data], f'{BACKBONE[network]}{tuned}, {crops}'),)


SETTINGS = {
    'vse0,f30k': (('VSE0', 'f30k', 'VSE++ table 3', 'VGG19, 1C'),),
    'vsepp,f30k': (('VSE++', 'f30k', 'VSE++ table 3', 'VGG19, 1C'),),
    'vse0,coco': (('VSE0', 'coco', 'VSE++ table 2', 'VGG19, 1C'),),
    'vsepp,coco': (('VSE++', 'coco', 'VSE++ table 1', 'VGG19, 1C'),),
    'vse0,10crop': (('VSE0', 'coco', 'VSE++ table 4'),),
    'vsepp,10crop': (('VSE++', 'coco', 'VSE++ table 4'),),
    'order0,10crop': (('Order0', 'coco', 'VSE++ table 4'),),
    'orderpp,10crop': (('Order++', 'coco', 'VSE++ table 4'),),
    **{
        f'{system},{network},{tuning},{data}': _rows(system, name, network, tuning, data)
        for system, name in (('vse0', 'VSE0'), ('vsepp', 'VSE++'))
        for network, tuning, data in (
            ('vgg19', 'frozen', 'coco'),
            ('vgg19', 'frozen', 'coco_rv'),
            ('vgg19', 'finetuned', 'coco_rv'),
            ('resnet152', 'frozen', 'coco_rv'),
            ('resnet152', 'finetuned', 'coco_rv'),
            ('vgg19', 'frozen', 'f30k'),
            ('vgg19', 'finetuned', 'f30k'),
            ('resnet152', 'frozen', 'f30k'),
            ('resnet152', 'finetuned', 'f30k'),
        )
        if (system, data) != ('vse0', 'f30k') or (network, tuning) == ('vgg19', 'frozen')
    },
    **{f'{system},{data}': () for system in ('vse0', 'vsepp') for data in ('f8k', 'f8k_1c', 'f8k_10c')},
    **{f'{system},squeezenet,{tuning},f8k': () for system in ('vse0', 'vsepp') for tuning in TUNING},
}


def get_config(setting: str = 'vsepp,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    system, network, tuning, data = common.parse(setting, SYSTEM, NETWORK, TUNING, DATA)
    config = _alone(system, network, tuning, data)
    if tuning == 'finetuned':
        first = _alone(system, network, 'frozen', data)
        config.stages = dict(first=common.first_stage(first), top_h_texts=0, top_h_images=0, fine_tune=True)
    return config


def _alone(system: str, network: str, tuning: str, data: str) -> ConfigDict:
    """Returns the config of a single stage, the last one if there are several."""
    arguments = dict(SYSTEM[system])
    config = default.get_config()
    config.terms.ranking.loss = f'ranking.{arguments.pop("loss")}'
    config.terms.ranking.margin = arguments.pop('margin')
    config.optimizer.learning_rate = arguments.pop('learning_rate')
    config.model.update(arguments)
    if NETWORK[network]:
        _read_photos(config, network, tuning, data)
    elif tuning != 'frozen' or not DATA[data]:
        word = data if tuning == 'frozen' else tuning
        raise ValueError(f"the word '{word}' needs a network: add one of {', '.join(BACKBONE)}, squeezenet")
    else:
        config.data = DATA[data]
    reduced = data.startswith('f8k')
    if reduced:
        photos = bool(NETWORK[network]) or data != 'f8k'
        common.reduce(config)
        if photos:
            config.model.embed_dim = 256
        if system == 'vsepp' and tuning != 'finetuned':
            common.sum_first(config, epochs=_epochs_of_sums(photos, tuning))
    if tuning == 'finetuned':
        rate = config.optimizer.learning_rate / 10
        common.set_schedule(config, epochs=4 if reduced else 15, learning_rate=rate, decay_epochs=15)
    return config


def _epochs_of_sums(photos: bool, tuning: str) -> int:
    """Returns the epochs before max of hinges in a reduced variant; with fewer, the scores of photos collapse."""
    if tuning == 'scratch':
        return 6  # until the learning rate falls
    return 3 if photos else 1  # a photo is one vector of a small network, whose scores need more epochs to spread


def _read_photos(config: ConfigDict, network: str, tuning: str, data: str) -> None:
    """Makes the model read pixels instead of features."""
    if data not in PHOTOS:
        raise ValueError(
            f"the data '{data}' are features: take one of {', '.join(PHOTOS)} with the network '{network}'"
        )
    config.data = PHOTOS[data]
    if data == 'f8k':
        config.length_multiple = 12  # fewer lengths to compile
    config.model.image = dict(
        name='cnn.PixelEncoder',
        network=dict(
            NETWORK[network],
            pooled=True,  # one global vector; False: the cells of the last map as regions
            dtype='float32',  # or 'bfloat16', of activations
            remat=False,  # recomputes activations in the backward pass, which saves memory
        ),
        normalize_features=True,  # features of the network have unit length
        regions=config.model.image.to_dict(),
    )
    if tuning == 'frozen':
        config.initialize.image = WEIGHTS[network]
        config.optimizer.factors = dict(network=0.0)
