"""VSE-infinity (Chen et al. 2021, on regions) and ESA (Zhu et al. 2023), which differ in their pooling.

Example: --config vse_infinity:esa,gru,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common, vse

SYSTEM = {
    'vse_infinity': dict(pooling='gpo', num_views=1),
    'esa': dict(pooling='esa', num_views=2),  # element-wise attention; self-expanding
}
TEXT = {  # the text encoder, with ESA's initialization and its dropout of the output (bert) or word embeddings (gru)
    'bert': dict(output_dropout=0.1, linear_init='xavier'),
    'gru': dict(dropout=0.1, word_init='normal'),
}
WORD_VECTORS = 'data/glove.840B.300d.txt'  # used by ESA's bi-GRU


@common.preset(SYSTEM, TEXT, common.DATA)
def get_config(system: str, text: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = vse.get_config('fc,sum_max')
    config.data = common.DATA[data]
    config.augmentation.num_views = SYSTEM[system]['num_views']
    config.model.image.mlp = 'residual_on_input'
    config.model.image.norm_padding = True
    config.model.image_pooling = SYSTEM[system]['pooling']
    config.model.text_pooling = SYSTEM[system]['pooling']
    common.set_schedule(config, epochs=25, learning_rate=5e-4, decay_epochs=15)
    if text == 'bert':
        common.use_bert(config)
    if system == 'esa':
        config.model.text.update(TEXT[text])
    if system == 'esa' and text == 'gru':
        config.model.text_pooling = 'esa_uniform'
        config.initialize.word_vectors = WORD_VECTORS
    return config
