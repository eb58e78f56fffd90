"""BLIP (Li et al. 2022), whose vectors are fine-tuned; its re-ranking head stays as it was published.

`jitm convert` makes the run that a published size is initialized from. `vocabulary.path` is the vocab.txt of BERT with
two more lines, [DEC] and [ENC]:

    jitm convert --from blip models/blip-itm-base-coco --out runs/blip_base
    jitm train --config blip:base,softmax,f30k --workdir runs/blip_base_f30k

Images of any folder that `photos.load` reads: --config.data.root=FOLDER.
"""

from ml_collections import ConfigDict

from jitm.configs import clip, common, siglip

ACTIVATION = dict(activation='gelu', dtype='float32')
BASE = dict(hidden_dim=768, num_layers=12, num_heads=12, mlp_dim=3072)
LARGE = dict(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
SIZE = {  # the tower of images, learning rate, batch size; the text tower is that of base
    'base': (BASE, 1e-5, 256),
    'large': (LARGE, 5e-6, 128),
}
LOSSES = ('softmax', 'max', 'selhn')


@common.preset(SIZE, LOSSES, clip.DATA)
def get_config(size: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    tower, learning_rate, batch_size = SIZE[size]
    config = clip.get_config(f'b16,{loss},{data}')
    config.data = dict(siglip.DATA[data], image_size=384, min_area=0.5, flip=True)
    image = dict(name='blip.NormalizedViT', image_size=384, patch_size=16, epsilon=1e-6, **tower)
    text = dict(name='blip.MultimodalBERT', max_length=512, **BASE)
    config.model = dict(name='blip.BLIP', embed_dim=256, initial_temperature=0.07)
    config.model.update(image=dict(image, **ACTIVATION, **clip.PIXELS), text=dict(text, **ACTIVATION))
    config.update(epochs=6, batch_size=batch_size)
    reranker = dict(cross_attention=0.0, cross_norm=0.0, itm_head=0.0)
    config.optimizer.update(learning_rate=learning_rate, weight_decay=0.05, warm_up=0.0, factors=reranker)
    config.vocabulary.path = 'data/blip/vocab.txt'
    config.members.target.init_from = f'runs/blip_{size}'
    return config
