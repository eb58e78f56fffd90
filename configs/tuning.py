"""Ways to fine-tune a model or to train on its vectors: options that presets may have besides those of their tables.

    jitm train --config clip:b32,f30k,lora --workdir runs/clip_b32_lora
    jitm train --config clip:b32,f30k,half,layerwise,ema --workdir runs/clip_b32_half
    jitm train --config vse:fc,max,f30k,minilm,frozen --workdir runs/vse_minilm

See docs/finetuning.md.
"""

from ml_collections import ConfigDict

# Layers, see `jitm.training.modules.select_modules`.
LOWER_HALF = 'lower_50%'
ALL_LAYERS = 'lower_100%'


def encode_with_bert(config: ConfigDict, folder: str, **text: object) -> None:
    """Encodes texts with a BERT, at a tenth of the learning rate.

    Args:
      config: The config.
      folder: The folder of its weights and its vocabulary; '' if `text` has their path.
      **text: The arguments of `jitm.layers.text.BERTEncoder`.
    """
    config.vocabulary.path = folder and f'{folder}/vocab.txt'
    config.initialize.update(bert=folder, word_vectors='')
    config.augmentation.keep_special_tokens = True
    config.model.text = dict(name='text.BERTEncoder', **text)
    config.optimizer.factors.update(bert=0.1)


def _drop_rate_of_bert(config: ConfigDict) -> None:
    config.optimizer.factors = {key: value for key, value in config.optimizer.factors.items() if key != 'bert'}


def _check_text_encoder(config: ConfigDict, option: str) -> None:
    if config.model.get('text', {}).get('name') not in ('text.GRUEncoder', 'text.BERTEncoder'):
        raise ValueError(f"'{option}' needs a model whose text encoder is a GRU or a BERT: leave it out")


def _tokens(config: ConfigDict) -> None:
    if config.data.source != 'precomp.load':
        raise ValueError("'tokens' needs encoded images: choose data in a folder of features")
    config.data.update(root=config.data.root.removesuffix('_precomp') + '_tokens', token_vectors=True)
    for stage in (config, config.stages.first) if config.stages else (config,):
        _check_text_encoder(stage, 'tokens')
        _drop_rate_of_bert(stage)
        stage.vocabulary.path = ''
        stage.initialize.update(bert='', word_vectors='')
        stage.augmentation.change_words = 0.0  # the frozen encoder has read the words
        stage.model.text = dict(name='text.TokenEncoder', dropout=0.1)


def _minilm(config: ConfigDict) -> None:
    _check_text_encoder(config, 'minilm')
    encode_with_bert(config, folder='', path='all-MiniLM-L6-v2')
    if config.model.get('text_pooling') == 'last':
        config.model.text_pooling = 'published'


def _check_towers(config: ConfigDict, option: str) -> None:
    if config.model.get('image', {}).get('name') == 'clip_resnet.ModifiedResNet':
        raise ValueError(f"'{option}' needs towers that are transformers: the image tower is a ResNet")


def _freeze(config: ConfigDict, option: str, layers: str) -> None:
    _check_towers(config, option)
    config.optimizer.factors.update({layers: 0.0})


def _check_dual_encoder(config: ConfigDict, option: str, key: str) -> None:
    if not config.model.name.startswith(('clip.', 'blip.')):
        raise ValueError(f"'{option}' needs a CLIP, SigLIP or BLIP: set {key} instead")


def _locked(config: ConfigDict, tower: str) -> None:
    _check_dual_encoder(config, f'locked_{tower}', 'optimizer.factors')
    config.optimizer.factors.update({tower: 0.0})


def _bfloat16(config: ConfigDict) -> None:
    _check_dual_encoder(config, 'bfloat16', 'the dtype of a part of the model')
    for tower in (config.model.image, config.model.text):
        tower.dtype = 'bfloat16'


def _lora(config: ConfigDict) -> None:
    _check_towers(config, 'lora')
    if ALL_LAYERS in config.optimizer.factors:
        raise ValueError("'lora' trains adapters of what 'frozen' freezes: leave one of them out")
    _drop_rate_of_bert(config)
    config.optimizer.learning_rate = max(config.optimizer.learning_rate, 1e-4)
    for member in config.members.values():
        if member.rule == 'gradient':
            member.lora = dict(rank=8, alpha=8.0, modules=('query', 'key', 'value', 'out'))


def _layerwise(config: ConfigDict) -> None:
    config.optimizer.layer_decay = 0.85


def _ema(config: ConfigDict) -> None:
    if 'average' not in config.members:  # else a part of the training, as beside a queue
        config.members.average = dict(rule='ema', of='target', momentum=0.998, constant=True)
    config.evaluation.member = 'average'


TUNING = {  # option -> change of the config, see `meanings`; without any, all parameters are trained at one rate
    'tokens': _tokens,
    'minilm': _minilm,
    'frozen': lambda config: _freeze(config, 'frozen', ALL_LAYERS),
    'locked_image': lambda config: _locked(config, 'image'),  # Zhai et al., 2022b
    'locked_text': lambda config: _locked(config, 'text'),
    'half': lambda config: _freeze(config, 'half', LOWER_HALF),
    'lora': _lora,
    'bfloat16': _bfloat16,
    'layerwise': _layerwise,
    'ema': _ema,
}
