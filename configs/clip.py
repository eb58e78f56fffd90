"""CLIP (Radford et al. 2021), fine-tuned, and a tiny one trained from scratch.

`jitm convert` makes the run that a published size is initialized from:

    jitm convert --from clip WEIGHTS --out runs/clip_b32
    jitm train --config clip:b32,softmax,f30k --workdir runs/clip_b32_f30k

The file is also the default of `jitm convert`, whose run has the model of the weights. With anchors:
dbl:clip,rm,oas,f30k.
Images of any folder that `photos.load` reads: --config.data.root=FOLDER.
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

QUICK_GELU = dict(activation='quick_gelu', dtype='float32')  # OpenAI's models; most others have 'gelu'
# Statistics of the images that CLIP was trained on.
PIXELS = dict(mean=(0.48145466, 0.4578275, 0.40821073), deviation=(0.26862954, 0.26130258, 0.27577711))


def tower(hidden_dim: int, num_layers: int, head_size: int = 64) -> dict:
    """Returns the sizes of a transformer."""
    num_heads = hidden_dim // head_size
    sizes = dict(hidden_dim=hidden_dim, num_layers=num_layers, num_heads=num_heads, mlp_dim=4 * hidden_dim)
    return dict(sizes, **QUICK_GELU)


def vit(image_size: int, patch_size: int, *sizes: int) -> dict:
    """Returns an image encoder that is a transformer of these sizes, see `tower`."""
    return dict(name='vit.ViT', image_size=image_size, patch_size=patch_size, **tower(*sizes), **PIXELS)


def resnet(*blocks: int) -> dict:
    """Returns an image encoder that is a ResNet with these numbers of blocks."""
    sizes = dict(image_size=224, blocks=blocks, stem_dim=64, num_heads=32)
    return dict(name='clip_resnet.ModifiedResNet', **sizes, train_norm=False, dtype='float32', **PIXELS)


def text(*sizes: int) -> dict:
    """Returns a text encoder of these sizes, see `tower`."""
    return dict(name='clip_text.CausalTransformer', max_length=77, **tower(*sizes))


SIZE = {  # tables 19 and 20
    'l14_336': dict(embed_dim=768, image=vit(336, 14, 1024, 24), text=text(768, 12)),
    'l14': dict(embed_dim=768, image=vit(224, 14, 1024, 24), text=text(768, 12)),
    'b16': dict(embed_dim=512, image=vit(224, 16, 768, 12), text=text(512, 12)),
    'b32': dict(embed_dim=512, image=vit(224, 32, 768, 12), text=text(512, 12)),
    'rn50': dict(embed_dim=1024, image=resnet(3, 4, 6, 3), text=text(512, 12)),
    'rn101': dict(embed_dim=512, image=resnet(3, 4, 23, 3), text=text(512, 12)),
}
LOSSES = ('softmax', 'max', 'sum', 'selhn')
PHOTOS = dict(image_size=224, short_side=224, interpolation='bicubic', min_area=0.9, flip=False)  # open_clip
DATA = {
    'f30k': common.photos('data/f30k_photos', **PHOTOS),
    'coco': common.photos('data/coco_photos', max_captions=5, **PHOTOS),
}
# DBL states no settings of CLIP: these follow Shi et al. 2023 for L/14@336, without their momentum model, and CLIP_COCO
# (Miranda et al. 2024) for the others. warm_up is the share of the steps with a rising rate.
SCHEDULE = {
    'l14_336': dict(learning_rate=1e-5, weight_decay=0.2, warm_up=0.0),
    'f30k': dict(learning_rate=1e-6, weight_decay=0.1, warm_up=0.01),
    'coco': dict(learning_rate=1e-6, weight_decay=0.1, warm_up=0.004),
}
L14_EPOCHS = {'f30k': 12, 'coco': 6}  # for L/14@336, in batches of 256


@common.preset(SIZE, LOSSES, DATA)
def get_config(size: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = default.get_config()
    config.data = DATA[data]
    config.data.image_size = config.data.short_side = SIZE[size]['image']['image_size']
    config.model = dict(name='clip.CLIP', **SIZE[size], initial_temperature=0.07)
    config.drop_last = True
    config.candidates.same_image = 'ignored'
    common.rank_with(config, common.LOSS['softmax_learned' if loss == 'softmax' else loss])
    config.update(epochs=10, batch_size=400)
    if size == 'l14_336':
        config.update(epochs=L14_EPOCHS[data], batch_size=256)
    schedule = SCHEDULE.get(size) or SCHEDULE[data]
    config.optimizer = dict(name='adamw_with_cosine', factors=dict(), clip_norm=1.0, **schedule)
    config.vocabulary.path = 'data/bpe_simple_vocab_16e6.txt.gz'
    config.members.target.init_from = f'runs/clip_{size}'
    return config
