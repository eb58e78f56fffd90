"""Reduced variants of the presets, which train on a CPU: smaller models, fewer epochs, and other data.

`f8k` is Flickr8k, with grid features unless an option says otherwise; `scenes` is synthetic. A variant is the preset of
the paper with the changes below. Dual encoders have the same changes for all losses that differ only in their negatives
(docs/results).
"""

import functools
from collections.abc import Callable

from ml_collections import ConfigDict

from jitm.configs import aoq, blip, clip, common, dbl, load, noisy, oscar, siglip, uniter, vsepp

F8K = common.precomp('data/f8k_precomp')
BOXES = {  # fewer images for validation, since each pair needs its own pass
    'f8k': common.precomp('data/f8k_precomp', dev_images=100),
    'scenes': dict(common.SCENES, dev_images=100, test_images=200),
}

TINY = dict(hidden_dim=128, num_heads=4, mlp_dim=512)  # a tower of SigLIP or BLIP

VARIANTS: dict[str, dict[str, Callable[..., ConfigDict]]] = {}  # file -> option -> function of one option of each table


def variants(file: str, *options: str) -> Callable[[Callable[..., ConfigDict]], Callable[..., ConfigDict]]:
    """Makes a function the variants of a file with these options as data."""

    def register(variant: Callable[..., ConfigDict]) -> Callable[..., ConfigDict]:
        VARIANTS[file] = dict.fromkeys(options, variant)
        return variant

    return register


def dual_encoder(config: ConfigDict) -> ConfigDict:
    """Halves a dual encoder, and trains it for 8 epochs without augmentation.

    A last hidden state becomes a mean over the words of a bidirectional GRU; BERT is tiny and randomly initialized.
    """
    config.data = F8K
    common.set_schedule(config, epochs=8, learning_rate=5e-4, decay_epochs=6)
    config.drop_last = True
    config.optimizer.weight_decay = 0.01
    config.augmentation.update(drop_regions=0.0, change_words=0.0)
    config.model.embed_dim = 512
    config.initialize.word_vectors = ''
    if config.model.get('text_pooling') == 'last':
        config.model.text_pooling = 'mean'
    text = config.model.get('text', {})
    if text.get('name') == 'text.GRUEncoder':
        text.update(bidirectional=True, word_init='uniform')
    if text.get('name') == 'text.BERTEncoder':
        config.initialize.bert = ''
        text.update(size='tiny', dropout=0.0)
        config.optimizer.factors = dict()
    return config


def cross_attention(config: ConfigDict, sums: int = 1) -> ConfigDict:
    """Quarters a cross-attention model, and trains it for 10 epochs, the first ones with the sum instead of the max."""
    dual_encoder(config)
    common.set_schedule(config, epochs=10, learning_rate=5e-4, decay_epochs=8)
    config.model.embed_dim = 256
    if 'alignment_dim' in config.model:
        config.model.alignment_dim = 64
    return sum_before_max(config, sums)


def sum_before_max(config: ConfigDict, epochs: int) -> ConfigDict:
    """Trains with the sum of hinges before their max, which may not train from random parameters."""
    if config.terms.ranking.loss == 'ranking.max_of_hinges':
        common.sum_first(config, epochs)
    return config


@variants('vse', 'f8k', 'scenes')
def _vse(model: str, loss: str, data: str) -> ConfigDict:
    config = dual_encoder(load(f'vse:{model},{loss},f30k'))
    if data == 'scenes':
        config.data = common.SCENES
        config.batch_size = 64
        config.model.embed_dim = 256
    if model == 'rvsepp':  # SelHN does not train a BERT from random parameters
        common.sum_first(config, epochs=1)
    return config


@variants('vsrn', 'f8k')
def _vsrn(data: str) -> ConfigDict:
    config = sum_before_max(dual_encoder(load('vsrn:f30k')), epochs=1)
    config.model.caption_dim = 256
    config.evaluation.every_steps = None
    return config


@variants('vsepp', 'f8k', 'f8k_1c', 'f8k_10c')
def _vsepp(system: str, network: str, tuning: str, data: str) -> ConfigDict:
    """Photos are Flickr8k's; f8k_1c and f8k_10c are SqueezeNet's features of one crop and of ten."""
    photos = bool(vsepp.NETWORK[network])
    if photos and data != 'f8k':
        raise ValueError(f"the data '{data}' are features: use f8k with the network '{network}'")
    config = dual_encoder(load(f'vsepp:{system},{network},{tuning},f30k'))
    config.data.root = f'data/{data}_precomp'
    if photos:
        size = 224 if network in vsepp.PIXELS else 112
        config.data = common.photos('data/f8k_photos', image_size=size, short_side=size, min_area=0.5)
        config.length_multiple = 12  # fewer lengths to compile
    vectors = photos or data != 'f8k'  # vectors of whole photos need more epochs to spread scores
    if vectors:
        config.model.embed_dim = 256
    if tuning == 'finetuned':
        common.set_schedule(config, epochs=4, learning_rate=5e-5, decay_epochs=15)
        config.stages.first = common.first_stage(load(f'vsepp:{system},{network},frozen,{data}'))
        return config
    return sum_before_max(config, epochs=6 if tuning == 'scratch' else 3 if vectors else 1)


@variants('scan', 'f8k', 'scenes')
def _scan(direction: str, aggregation: str, loss: str, data: str) -> ConfigDict:
    config = load(f'scan:{direction},{aggregation},{loss},f30k')
    if data == 'f8k':
        return cross_attention(config)
    config.data = common.SCENES  # three minutes on two CPU cores
    config.update(batch_size=64, drop_last=True)
    config.model.embed_dim = config.model.text.word_dim = 128
    common.set_schedule(config, epochs=8, learning_rate=5e-4, decay_epochs=3)
    return sum_before_max(config, epochs=1)


def _of_f30k(reduce: Callable[[ConfigDict], ConfigDict], file: str, *options: str) -> ConfigDict:
    """Returns a reduced preset of Flickr30K; the last option names the reduced data."""
    return reduce(load(f'{file}:{",".join([*options[:-1], "f30k"])}'))


for _file in ('bfan', 'imram', 'gsmn', 'chan', 'maxsim', 'naaf'):
    variants(_file, 'f8k')(functools.partial(_of_f30k, cross_attention, _file))
# The hardest negatives of SGR and SAF score above the positives for about 1,000 steps: docs/results/networks.md.
variants('sgraf', 'f8k')(functools.partial(_of_f30k, functools.partial(cross_attention, sums=4), 'sgraf'))
variants('vse_infinity', 'f8k')(functools.partial(_of_f30k, dual_encoder, 'vse_infinity'))


@variants('heads', 'f8k')
def _heads(head: str, loss: str, data: str) -> ConfigDict:
    config = cross_attention(load(f'heads:{head},{loss},f30k'))
    config.data.update(root='data/f8k_tokens', token_vectors=True)
    return config


@variants('aoq', 'f8k')
def _aoq(model: str, loss: str, data: str) -> ConfigDict:
    """VSE++ mines the negatives of all but VSRN."""
    miner = 'vsrn' if model == 'vsrn' else 'vsepp'
    config = aoq.mine(load(aoq.MODEL[model] + data), load(aoq.MODEL[miner] + data), model, miner, loss, data)
    if loss == 'finetune':
        common.rank_with(config, config.terms.ranking.to_dict() | dict(start_epoch=0))
    return config


@variants('dbl', 'f8k')
def _dbl(network: str, loss: str, scenario: str, data: str) -> ConfigDict:
    config = dbl.make_network(network, data)
    if network == 'gpo':
        common.sum_first(config, epochs=1)
    if scenario == 'oas' and network != 'clip':  # both models are initialized from a trained one
        common.rank_with(config, common.LOSS['max'])
    momentum = round(1 - 0.0096 / config.epochs, 4)  # the average moves as far in the whole run as in the published one
    return dbl.train(config, network, loss, scenario, data, momentum)


@variants('noisy', 'f8k')
def _noisy(network: str, method: str, data: str) -> ConfigDict:
    """Warms up for a quarter of the epochs."""
    config = load(noisy.NETWORK[network] + data)
    noisy.learn(config, method, warm_up=config.epochs // 4)
    return config


@variants('clip', 'f8k', 'scenes')
def _clip(size: str, loss: str, data: str) -> ConfigDict:
    """A tiny one, from scratch."""
    check_size(size, clip.SIZE, data)
    config = load(f'clip:{loss},f30k')
    config.model.update(embed_dim=128, image=clip.vit(64, 16, 128, 4, 32), text=clip.text(128, 2, 32))
    return _tiny_clip(config, data)


@variants('siglip', 'f8k', 'scenes')
def _siglip(version: str, size: str, loss: str, data: str) -> ConfigDict:
    """A tiny one, from scratch; SigLIP and SigLIP 2 are the same."""
    check_size(version, siglip.VERSION, data)
    check_size(size, siglip.SIZE, data)
    config = load(f'siglip:{loss},f30k')
    image = siglip.vit(64, 16, dict(TINY, num_layers=4))
    text = siglip.text(64, 0, dict(TINY, num_layers=2))
    config.model = siglip.model(128, image, text)
    return _tiny_clip(config, data)


@variants('blip', 'f8k', 'scenes')
def _blip(size: str, loss: str, data: str) -> ConfigDict:
    """A tiny one, from scratch, without its head for re-ranking."""
    check_size(size, blip.SIZE, data)
    config = load(f'blip:{loss},f30k')
    config.model.embed_dim = 128
    config.model.image.update(image_size=64, num_layers=4, **TINY)
    config.model.text.update(max_length=64, num_layers=2, **TINY)
    return _tiny_clip(config, data)


def _tiny_clip(config: ConfigDict, data: str) -> ConfigDict:
    """Trains a tiny CLIP, SigLIP or BLIP from scratch."""
    config.vocabulary.path = config.members.target.init_from = ''
    config.length_multiple = 12  # fewer lengths to compile
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.1, warm_up=0.1)
    if data == 'f8k':
        short_side = min(config.data.short_side, 64)  # 0 for SigLIP
        changes = dict(clip.PHOTOS, image_size=64, short_side=short_side, min_area=0.5, flip=True)
        config.data = common.photos('data/f8k_photos', **changes)
        config.update(epochs=10, batch_size=128)
    else:
        config.data = common.SCENES
        config.update(epochs=12, batch_size=64)
    return sum_before_max(config, epochs=1)


def check_size(size: str, sizes: dict[str, object] | tuple[str, ...], data: str) -> None:
    """Raises a ValueError unless a size is the first one, the default."""
    if size != next(iter(sizes)):
        raise ValueError(f"the reduced variant '{data}' is tiny: leave the option '{size}' out")


def tiny_transformer(config: ConfigDict, data: str) -> ConfigDict:
    """Makes UNITER or OSCAR tiny, with a vocabulary of the training captions."""
    config.vocabulary = dict(path='', min_count=1 if data == 'scenes' else 4)
    config.model.update(size='tiny', dtype='float32', dropout=0.0)
    return config


# The tags of Flickr8k are a small detector's.
TAGGED = dict(common.precomp('data/f8k_regions_precomp', dev_images=100), min_tag_score=0.2)


@variants('oscar', 'f8k', 'scenes')
def _oscar(loss: str, size: str, data: str) -> ConfigDict:
    """From scratch."""
    check_size(size, oscar.SIZE, data)
    config = tiny_transformer(load('oscar:alone,coco'), data)
    config.data = TAGGED if data == 'f8k' else BOXES[data]
    config.update(epochs=8, batch_size=32 if data == 'f8k' else 16)
    config.optimizer.update(learning_rate=1e-3, warm_up=0.1)
    if loss != 'alone':
        dbl.boost(config, loss, 'oas', common.run_of(f'oscar:alone,{data}'))
    return config


UNITER = {  # candidates of each query: scored, and kept; masked views of each caption, and the phrases that are masked
    'f8k': dict(epochs=1, batch_size=16, candidates=16, hard=3, views=4, phrases='scene_graphs.rules'),
    'scenes': dict(epochs=1, batch_size=8, candidates=32, hard=7, views=8, phrases='scene_graphs.gold'),
}
PRETRAIN = {
    'f8k': dict(epochs=2, batch_size=8, views=2, phrases='scene_graphs.rules'),
    'scenes': dict(epochs=6, batch_size=16, views=4, phrases='scene_graphs.gold'),
}


def _joint_encoder(config: ConfigDict, data: str, numbers: dict) -> ConfigDict:
    tiny_transformer(config, data)
    config.data = BOXES[data]
    config.update(epochs=numbers['epochs'], batch_size=numbers['batch_size'])
    config.evaluation.every_steps = None
    if config.masking.num_views:
        config.masking.num_views = numbers['views']
        config.scene_graphs.source = numbers['phrases']
    if config.candidates.source == 'shortlist':
        config.candidates.num_extra = numbers['candidates'] - numbers['batch_size']
        config.candidates.num_hard = numbers['hard']
        config.optimizer.learning_rate = 3e-4
        config.members.target.init_from = common.run_of(f'uniter:pretrain,{data}')
    else:
        config.optimizer.learning_rate = 1e-3
    return config


@variants('uniter', 'f8k', 'scenes')
def _uniter(system: str, size: str, data: str) -> ConfigDict:
    """Initialized from the reduced `pretrain`, which starts from scratch."""
    check_size(size, uniter.SIZE, data)
    numbers = PRETRAIN if system == 'pretrain' else UNITER
    return _joint_encoder(load(f'uniter:{system},f30k'), data, numbers[data])


@variants('tags', 'f8k', 'scenes')
def _tags(system: str, size: str, data: str) -> ConfigDict:
    """Initialized as UNITER, and TAGS-DC from TAGS."""
    check_size(size, uniter.SIZE, data)
    config = _joint_encoder(load(f'tags:{system},f30k'), data, UNITER[data])
    config.synthesis.update(num_samples=4, temperature=1.5, num_hard=UNITER[data]['hard'])
    config.terms.synthetic.weight = 1.0
    config.terms.masked.weight = 0.1
    if system == 'tags_sg':
        config.members.generator.init_from = common.run_of(f'uniter:uniter_mlm,{data}')
    if system == 'tags_wm':
        config.scene_graphs.source = ''
    if system == 'tags_dc':
        config.members.target.init_from = common.run_of(f'tags:tags,{data}')
    if 'discrimination' in config.terms:
        config.terms.discrimination.weight = config.terms.correction.weight = 0.1
    return config
