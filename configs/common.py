"""The words of a setting, and the parts that several systems share."""

import difflib
from collections.abc import Iterable

from ml_collections import ConfigDict


def _precomp(root: str, dev_images: int = 1000) -> dict:
    return dict(source='precomp.load', root=root, dev_images=dev_images)


def photos(root: str, **changes: object) -> dict:
    """Returns `config.data` for a folder of image files: by default as VSE++ trains on pixels (RC)."""
    data = dict(
        source='photos.load',
        root=root,  # image files with captions, see docs/photos.md
        image_size=224,  # height and width of the pixels that the model reads
        short_side=256,  # the shorter side of a photo is resized to this many pixels, of which the middle is cut out
        interpolation='bilinear',  # or 'bicubic', as CLIP's
        crop='random',  # of training examples (RC); 'centre' (1C), as always in evaluation
        min_area=0.08,  # smallest share of a photo in a random crop; 0.9 in the training of open_clip
        flip=True,  # mirrors each training example with probability 1/2
        restval=True,  # trains on COCO's restval too (rV)
        max_captions=None,  # captions of each image, the first ones (COCO: 5, as is customary); None for all
        dev_images=1000,  # longer dev splits are truncated to this many images, as is customary
    )
    return dict(data, **changes)


# word -> `config.data`. `f8k` selects a reduced variant: grid features of Flickr8k, sizes and epochs that fit a CPU.
DATA = {
    'f30k': _precomp('data/f30k_precomp'),
    'coco': _precomp('data/coco_precomp'),
    'f8k': _precomp('data/f8k_precomp'),
}
SCENES = dict(source='scenes.load', seed=0, train_images=2000, dev_images=500, test_images=500)  # synthetic
# For models that read the positions of regions; `f8k` and `scenes` select reduced variants.
BOXES = {
    'f30k': _precomp('data/f30k_boxes'),
    'coco': _precomp('data/coco_boxes'),
    'f8k': _precomp('data/f8k_precomp', dev_images=100),  # small, since each pair needs its own pass
    'scenes': dict(SCENES, dev_images=100, test_images=200),
}

# For models that read object tags too; `f8k` and `scenes` select reduced variants, `f8k` with a small detector's boxes.
TAGGED = {
    'coco': _precomp('data/coco_oscar', dev_images=200),  # 200,000 pairs
    'f8k': dict(_precomp('data/f8k_regions_precomp', dev_images=100), min_tag_score=0.2),
    'scenes': BOXES['scenes'],
}


def parse(setting: str, *tables: Iterable[str]) -> tuple[str, ...]:
    """Returns one word of each table.

    Args:
      setting: words separated by commas, in any order, at most one of each table.
      *tables: the known words; the first word of a table stands for a missing one.

    Raises:
      ValueError: if a word is unknown, or two are of one table.
    """
    tables = [list(table) for table in tables]
    chosen = [table[0] for table in tables]
    given = set()
    for word in setting.split(',') if setting else ():
        index = next((n for n, table in enumerate(tables) if word in table), None)
        if index is None:
            nearest = difflib.get_close_matches(word, [known for table in tables for known in table], n=1)
            guess = f", did you mean '{nearest[0]}'" if nearest else ''
            raise ValueError(f"the setting '{setting}' has the unknown word '{word}'{guess}; {_describe(tables)}")
        if index in given:
            raise ValueError(f"the setting '{setting}' has two words of {' | '.join(tables[index])}; take one")
        given.add(index)
        chosen[index] = word
    return tuple(chosen)


def _describe(tables: list[list[str]]) -> str:
    if not tables:
        return 'the file has no words'
    return f'take at most one word of each table: {"; ".join(" | ".join(table) for table in tables)}'


def set_schedule(config: ConfigDict, epochs: int, learning_rate: float, decay_epochs: int) -> None:
    """Sets the number of epochs, the initial learning rate, and the epochs after which it decays."""
    config.epochs = epochs
    config.optimizer.learning_rate = learning_rate
    config.optimizer.decay_epochs = decay_epochs


# Losses of `config.terms.ranking`, by their words.
LOSS = {
    'max': dict(loss='ranking.max_of_hinges', margin=0.2),
    'selhn': dict(  # Li et al. 2023
        loss='ranking.selective_hard_negative',
        margin=0.2,
        epsilon=0.01,
        weight=0.5,  # the mean of both directions, as released; the paper writes their sum
        reduction='mean',
    ),
    'softmax': dict(loss='ranking.softmax_contrastive', temperature=0.05, weight=0.5, reduction='mean'),  # InfoNCE
}


def rank_with(config: ConfigDict, loss: dict) -> None:
    """Makes `loss` the ranking loss, from the first epoch on."""
    others = {name: term for name, term in config.terms.to_dict().items() if name not in ('ranking', 'warm_up')}
    ranking = dict(weight=1.0, start_epoch=0, end_epoch=None, reduction='sum')
    config.terms = dict(ranking=dict(ranking, **loss), **others)


def sum_first(config: ConfigDict, epochs: int) -> None:
    """Trains with the sum of hinges for this many epochs before the ranking loss."""
    terms = config.terms.to_dict()
    ranking = terms.pop('ranking')
    sums = dict(loss='ranking.sum_of_hinges', margin=ranking['margin'])
    config.terms = dict(
        warm_up=dict(sums, weight=1.0, start_epoch=0, end_epoch=epochs, reduction='sum'),
        ranking=dict(ranking, start_epoch=epochs),
        **terms,
    )


def mean_term(loss: str, *, weight: float, **arguments: float) -> dict:
    """Returns a term that is active in all epochs and averaged over its queries, captions or tokens."""
    return dict(loss=loss, weight=weight, start_epoch=0, end_epoch=None, reduction='mean', **arguments)


def use_bert(config: ConfigDict) -> None:
    """Encodes texts with BERT base, at a tenth of the learning rate."""
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    config.initialize.bert = 'data/bert-base-uncased'
    config.augmentation.keep_special_tokens = True
    config.model.text = dict(
        name='text.BERTEncoder', size='base', dropout=0.1, output_dropout=0.0, dtype='float32', linear_init='uniform'
    )
    config.optimizer.factors = dict(bert=0.1)
    config.optimizer.weight_decay = 1e-4


def reduce(config: ConfigDict) -> None:
    """Makes a dual encoder its reduced variant for Flickr8k: half the size, 8 epochs, and a tiny BERT from scratch.

    Where the losses differ only in their negatives, this is the setting in which all of them train (docs/results.md).
    """
    set_schedule(config, epochs=8, learning_rate=5e-4, decay_epochs=6)
    config.drop_last = True
    config.optimizer.weight_decay = 0.01
    config.augmentation.update(drop_regions=0.0, change_words=0.0)
    config.model.embed_dim = 512
    config.initialize.word_vectors = ''
    if config.model.get('text_pooling') == 'last':
        config.model.text_pooling = 'mean'
    text = config.model.get('text', {})
    if text.get('name') == 'text.GRUEncoder':
        text.bidirectional, text.word_init = True, 'uniform'
    if text.get('name') == 'text.BERTEncoder':
        config.initialize.bert = ''
        text.size, text.dropout = 'tiny', 0.0
        config.optimizer.factors = dict()


def reduce_attention(config: ConfigDict) -> None:
    """Makes a cross-attention model its reduced variant for Flickr8k: a quarter of the size, 10 epochs."""
    reduce(config)
    set_schedule(config, epochs=10, learning_rate=5e-4, decay_epochs=8)
    config.model.embed_dim = 256


def first_stage(config: ConfigDict) -> dict:
    """Returns `config.stages.first` of a config: without the keys that both stages share."""
    shared = ('data', 'seed', 'run', 'stages')
    return {key: value for key, value in config.to_dict().items() if key not in shared}


def run_of(file: str, setting: str) -> str:
    """Returns the run directory of a setting: its words joined by underscores, after the stem of its file.

    The stem is left out if the words start with it: `runs/tags_dc_base_f30k`, not `runs/tags_tags_dc_base_f30k`.
    """
    stem, words = file.rpartition('.')[2], setting.replace(',', '_')
    return f'runs/{words}' if words.startswith(stem) else f'runs/{stem}_{words}'
