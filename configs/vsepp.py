"""VSE++ and VSE0, Order++ and Order0 (Faghri et al. 2018).

Example: --config vsepp:vsepp,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

SYSTEM = {  # section 3, tables 1 to 4: the loss, its margin, and the learning rate; Order: section 3.7
    'vsepp': dict(loss='max', margin=0.2, learning_rate=2e-4),
    'vse0': dict(loss='sum', margin=0.2, learning_rate=2e-4, normalize_images=False),
    'orderpp': dict(loss='max', margin=0.2, learning_rate=2e-4, name='vse.OrderEmbedding'),
    'order0': dict(loss='sum', margin=0.05, learning_rate=1e-3, name='vse.OrderEmbedding', absolute=True),
}
NETWORK = {  # image network; `features` are precomputed by VGG19, as published: one crop (1C) or ten (10crop)
    'features': {},
    'vgg19': dict(name='cnn.VGG19'),
    'resnet152': dict(name='cnn.ResNet', depth=152, train_norm=False),
    # Small, for `f8k`.
    'squeezenet': dict(name='cnn.SqueezeNet'),
    **{f'efficientnet_lite{n}': dict(name='cnn.EfficientNetLite', number=n, train_norm=False) for n in range(5)},
}
WEIGHTS = {  # from torchvision, but for EfficientNet-Lite; resnet152 is its first version, IMAGENET1K_V1
    'vgg19': 'data/vgg19-dcbb9e9d.pth',
    'resnet152': 'data/resnet152-394f9c45.pth',
    'squeezenet': 'data/squeezenet1_1.npz',
    **{f'efficientnet_lite{n}': f'efficientnet-lite{n}' for n in range(3)},  # from the Python package index
    **{f'efficientnet_lite{n}': f'data/efficientnet_lite{n}.pth' for n in (3, 4)},
}
PIXELS = {  # the size of the crop, and of the shorter side before it, with which EfficientNet-Lite was evaluated
    f'efficientnet_lite{n}': dict(image_size=size, short_side=side, interpolation='bicubic')
    for n, (size, side) in enumerate(((224, 256), (240, 274), (260, 297), (280, 320), (300, 343)))
}
TUNING = ('frozen', 'finetuned', 'scratch')
DATA = {  # features; with a network, photos
    **common.DATA,
    '10crop': dict(common.DATA['coco'], root='data/10crop_precomp'),  # COCO, mean features of ten crops
    'coco_rv': {},  # photos only, with `restval` (rV)
    'tfds': {},  # the same as prepared by TensorFlow Datasets
}
PHOTOS = {  # random crops (RC)
    'f30k': common.photos('data/f30k_photos'),
    'coco': common.photos('data/coco_photos', restval=False, max_captions=5),
    'coco_rv': common.photos('data/coco_photos', max_captions=5),
    'tfds': dict(common.photos('data/tfds/coco_captions/1.1.0', max_captions=5), source='tfds.load'),
}


@common.preset(SYSTEM, NETWORK, TUNING, DATA)
def get_config(system: str, network: str, tuning: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = _alone(system, network, tuning, data)
    if tuning == 'finetuned':
        first = _alone(system, network, 'frozen', data)
        rate = config.optimizer.learning_rate / 10
        common.set_schedule(config, epochs=15, learning_rate=rate, decay_epochs=15)
        config.stages = dict(first=common.first_stage(first), top_h_texts=0, top_h_images=0, fine_tune=True)
    return config


def _alone(system: str, network: str, tuning: str, data: str) -> ConfigDict:
    """Returns the config of a single stage."""
    arguments = dict(SYSTEM[system])
    config = default.get_config()
    common.rank_with(config, common.LOSS[arguments.pop('loss')] | dict(margin=arguments.pop('margin')))
    config.optimizer.learning_rate = arguments.pop('learning_rate')
    config.model.update(arguments)
    if NETWORK[network]:
        _read_photos(config, network, tuning, data)
    elif tuning != 'frozen' or not DATA[data]:
        option = data if tuning == 'frozen' else tuning
        raise ValueError(f"the option '{option}' needs a network: add one of {', '.join([*NETWORK][1:])}")
    else:
        config.data = DATA[data]
    return config


def _read_photos(config: ConfigDict, network: str, tuning: str, data: str) -> None:
    """Makes the model read pixels instead of features."""
    if data not in PHOTOS:
        options = ', '.join(PHOTOS)
        raise ValueError(f"the data '{data}' are features: use one of {options} with the network '{network}'")
    config.data = PHOTOS[data] | PIXELS.get(network, {})
    config.model.image = dict(
        name='cnn.PixelEncoder',
        network=dict(NETWORK[network], pooled=True, dtype='float32', remat=False),
        normalize_features=True,  # features of the network have unit length
        regions=config.model.image.to_dict(),
    )
    if tuning == 'frozen':
        config.initialize.image = WEIGHTS[network]
        config.optimizer.factors = dict(network=0.0)
