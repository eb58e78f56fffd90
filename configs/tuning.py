"""Ways to fine-tune a pretrained model: options that presets may have besides those of their tables.

    jitm train --config clip:b32,f30k,lora --workdir runs/clip_b32_lora
    jitm train --config clip:b32,f30k,half,layerwise,ema --workdir runs/clip_b32_half
    jitm train --config vse:fc,max,f30k,minilm,frozen --workdir runs/vse_minilm

See docs/finetuning.md.
"""

from ml_collections import ConfigDict

EMBEDDINGS = {  # encoder with blocks -> its modules before them
    'vit.ViT': ('patches', 'class_embedding', 'positions', 'norm_in'),
    'siglip.PooledViT': ('patches', 'positions'),
    'blip.NormalizedViT': ('patches', 'class_embedding', 'positions'),
    'blip.MultimodalBERT': ('words', 'positions', 'norm_in'),
    'clip_text.CausalTransformer': ('words', 'positions'),
    'siglip.PaddedTransformer': ('words', 'positions'),
}
TOWERS = ('image', 'text')


def _minilm(config: ConfigDict) -> None:
    if config.model.get('text', {}).get('name') not in ('text.GRUEncoder', 'text.BERTEncoder'):
        raise ValueError("'minilm' needs a model whose text encoder is a GRU or a BERT: leave it out")
    config.vocabulary.path = config.initialize.bert = config.initialize.word_vectors = ''
    config.augmentation.keep_special_tokens = True
    config.model.text = dict(name='text.BERTEncoder', path='all-MiniLM-L6-v2')
    if config.model.get('text_pooling') == 'last':
        config.model.text_pooling = 'published'
    config.optimizer.factors.update(bert=0.1)


def _below(config: ConfigDict, word: str, share: float) -> None:
    """Freezes the embeddings and a share of the blocks of both towers."""
    for tower in TOWERS:
        encoder = config.model.get(tower, {})
        if encoder.get('name') not in EMBEDDINGS:
            raise ValueError(
                f"'{word}' needs a CLIP, SigLIP or BLIP of two transformers: set optimizer.factors instead"
            )
        blocks = [f'encoder/block_{n}' for n in range(int(share * encoder.num_layers))]
        _freeze(config, *(f'{tower}/{module}' for module in (*EMBEDDINGS[encoder.name], *blocks)))


def _freeze(config: ConfigDict, *modules: str) -> None:
    config.optimizer.factors.update(dict.fromkeys(modules, 0.0))


def _frozen(config: ConfigDict) -> None:
    if 'bert' in config.optimizer.factors:
        _freeze(config, 'bert')
        return
    _below(config, 'frozen', share=1)
    _freeze(config, 'norm_out')


def _locked(config: ConfigDict, tower: str) -> None:
    if not config.model.name.startswith(('clip.', 'blip.')):
        raise ValueError(f"'locked_{tower}' needs a CLIP, SigLIP or BLIP: set optimizer.factors instead")
    _freeze(config, tower)


def _lora(config: ConfigDict) -> None:
    if config.model.get('image', {}).get('name') == 'clip_resnet.ModifiedResNet':
        raise ValueError("'lora' needs towers that are transformers: the image tower is a ResNet")
    if 'norm_out' in config.optimizer.factors or config.optimizer.factors.get('bert') == 0:
        raise ValueError("'lora' trains adapters of what 'frozen' freezes: leave one of them out")
    config.optimizer.factors = {key: value for key, value in config.optimizer.factors.items() if key != 'bert'}
    config.optimizer.learning_rate = max(config.optimizer.learning_rate, 1e-4)
    for member in config.members.values():
        if member.rule == 'gradient':
            member.lora = dict(rank=8, alpha=8.0, modules=('query', 'key', 'value', 'out'))


def _layerwise(config: ConfigDict) -> None:
    config.optimizer.layer_decay = 0.85


def _ema(config: ConfigDict) -> None:
    config.members.average = dict(rule='ema', of='target', momentum=0.998, constant=True)
    config.evaluation.member = 'average'


TUNING = {  # option -> change of the config; without any, all parameters are trained at one rate
    'minilm': _minilm,  # encodes texts with MiniLM, at a tenth of the learning rate
    'frozen': _frozen,  # towers are frozen, projections are trained
    'locked_image': lambda config: _locked(config, 'image'),  # LiT (Zhai et al., 2022b)
    'locked_text': lambda config: _locked(config, 'text'),
    'half': lambda config: _below(config, 'half', share=0.5),  # embeddings and the lower half of the blocks are frozen
    'lora': _lora,  # adapters of attention are trained, and what is outside of transformers
    'layerwise': _layerwise,  # the rate falls by layer
    'ema': _ema,  # evaluates a moving average of the parameters, and the parameters beside it
}
