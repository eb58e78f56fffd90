"""The options of a preset, and the parts that several systems share."""

import difflib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from ml_collections import ConfigDict

from jitm.configs import default
from jitm.configs.tuning import TUNING, encode_with_bert


def preset(*tables: Iterable[str]) -> Callable[[Callable[..., ConfigDict]], Callable[[str], ConfigDict]]:
    """Makes the `get_config` of a file from a function of one option of each table; the last table has the data.

    The options of the file's reduced variants (`reduced.VARIANTS`) are known too, as data; the variant then makes the
    config instead. Options of `tuning.TUNING` change the config of any preset; there may be several.
    """

    def decorate(published: Callable[..., ConfigDict]) -> Callable[[str], ConfigDict]:
        path = Path(published.__code__.co_filename).resolve()
        file = path.stem if path.parent == Path(__file__).resolve().parent else ''  # '' for a file of the user

        def variants() -> dict[str, Callable[..., ConfigDict]]:
            from jitm.configs import reduced  # imports the files of the systems, which import this one

            return reduced.VARIANTS.get(file, {})

        def get_config(preset: str = '') -> ConfigDict:
            """Returns the config of a preset, options separated by commas."""
            system, changes = split_tuning(preset, get_config.tables())
            options = parse(system, *get_config.tables())
            config = variants().get(options[-1] if options else '', published)(*options)
            for change in changes:
                TUNING[change](config)
            return config

        get_config.tables = lambda: [*map(list, tables[:-1]), *([*table, *variants()] for table in tables[-1:])]
        return get_config

    return decorate


def split_tuning(preset: str, tables: Iterable[Iterable[str]]) -> tuple[str, list[str]]:
    """Splits the options of a preset into those of its tables, joined, and those of `tuning.TUNING` in its order."""
    named = {*itertools.chain(*tables)}
    options = preset.split(',')
    changes = [option for option in TUNING if option in options and option not in named]
    return ','.join(option for option in options if option not in changes), changes


def precomp(root: str, dev_images: int = 1000) -> dict:
    """Returns `config.data` for a folder of precomputed region features."""
    return dict(source='precomp.load', root=root, dev_images=dev_images)


def photos(root: str, **changes: object) -> dict:
    """Returns `config.data` for a folder of image files, see docs/photos.md: by default as VSE++ trains on pixels (RC).

    The shorter side of a photo is resized to `short_side` pixels and the center of `image_size` pixels is cropped; with
    `short_side=0` both sides are resized (SigLIP).
    """
    pixels = dict(image_size=224, short_side=256, interpolation='bilinear')
    return dict(source='photos.load', root=root, dev_images=1000, **pixels) | changes


DATA = {'f30k': precomp('data/f30k_precomp'), 'coco': precomp('data/coco_precomp')}  # option -> `config.data`
SCENES = dict(source='scenes.load', dev_images=500)  # synthetic


def parse(preset: str, *tables: Iterable[str]) -> tuple[str, ...]:
    """Returns one option of each table.

    Args:
      preset: Options separated by commas, in any order, at most one of each table.
      *tables: The known options; the first option of a table is its default.

    Raises:
      ValueError: If an option is unknown, or two are in one table.
    """
    tables = [list(table) for table in tables]
    chosen = [table[0] for table in tables]
    listed = '; '.join(map(' | '.join, tables))
    remedy = f'use at most one option of each table: {listed}' if tables else 'the file has no options'
    indices = set()
    for option in preset.split(',') if preset else ():
        index = next((n for n, table in enumerate(tables) if option in table), None)
        if index is None:
            nearest = difflib.get_close_matches(option, [*itertools.chain(*tables), *TUNING], n=1)
            problem = f"the preset '{preset}' has the unknown option '{option}'"
            raise ValueError(f"{problem}, did you mean '{nearest[0]}'" if nearest else f'{problem}; {remedy}')
        if index in indices:
            raise ValueError(f"the preset '{preset}' has two options of {' | '.join(tables[index])}; use one")
        indices.add(index)
        chosen[index] = option
    return tuple(chosen)


def regions_and_words(name: str, data: str, loss: str, schedule: dict, **arguments: object) -> ConfigDict:
    """Returns the config of a model that attends to regions and words, with a bidirectional GRU.

    Args:
      name: The model in `jitm.models`.
      data: An option of `DATA`.
      loss: An option of `CROSS_ATTENTION`.
      schedule: The arguments of `set_schedule`.
      **arguments: Further arguments of the model.
    """
    config = default.get_config()
    config.data = DATA[data]
    encoders = {key: config.model[key].to_dict() for key in ('image', 'text')}
    config.model = dict(name=name, embed_dim=config.model.embed_dim, **encoders, **arguments)
    config.model.text.bidirectional = True
    rank_with(config, CROSS_ATTENTION[loss])
    set_schedule(config, **schedule)
    return config


def set_schedule(config: ConfigDict, epochs: int, learning_rate: float, decay_epochs: int) -> None:
    """Sets the number of epochs, the initial learning rate, and the epochs after which it decays."""
    config.epochs = epochs
    config.optimizer.learning_rate = learning_rate
    config.optimizer.decay_epochs = decay_epochs


# option -> loss, its arguments, and values of its term that differ from the defaults of `term`.
LOSS = {
    'max': dict(loss='ranking.max_of_hinges', margin=0.2),  # HN: hard negatives
    'sum': dict(loss='ranking.sum_of_hinges', margin=0.2),  # Triplet: all negatives
    'shn': dict(loss='ranking.semi_hard_hinge', margin=0.2),  # semi-hard negatives
    'sct': dict(loss='ranking.selective_contrastive', margin=0.2),  # selectively contrastive triplet loss
    'selhn': dict(  # Li et al. 2023: the mean of both directions, as in the code; the paper has their sum
        loss='ranking.selective_hard_negative', margin=0.2, epsilon=0.01, weight=0.5, reduction='mean'
    ),
    # InfoNCE, at the temperature at which CLIP starts, and that of MoCo
    'softmax': dict(loss='ranking.softmax_contrastive', temperature=0.07, weight=0.5, reduction='mean'),
    'softmax_learned': dict(loss='ranking.softmax_contrastive', weight=0.5, reduction='mean'),  # CLIP
    # SigLIP: one of the two directions, which have the same sum
    'sigmoid': dict(loss='ranking.sigmoid_contrastive', reduction='mean', rankings=('i2t',)),
    'cmpm': dict(loss='ranking.projection_matching', temperature=0.1, reduction='mean'),
    'mpl': dict(loss='ranking.polynomial', margin=0.2, reduction='mean'),
    'sam': dict(loss='ranking.adaptive_margin'),
    # AOQ, section 3 and table 3
    'adapoffquin': dict(loss='offline.adaptive_offline_quintuplet'),
    'offquin': dict(loss='offline.offline_quintuplet'),
    'offtri': dict(loss='offline.offline_triplet'),
    'onlinequin': dict(loss='offline.online_quintuplet'),
    'onlyoffline': dict(loss='offline.offline_quintuplet', online_weight=0.0),
    # w/o OfflineAdap; the paper tuned alpha and beta again without stating their values
    'withoutadap': dict(loss='offline.adaptive_offline_quintuplet', weigh_by_positive=True),
    # DBL, table IV: relative and absolute, over the hardest (max) or all negatives (sum), models B, C, F and G
    'rm': dict(loss='anchored.relative_max'),
    'am': dict(loss='anchored.absolute_max'),
    'rs': dict(loss='anchored.relative_sum'),
    'as': dict(loss='anchored.absolute_sum'),
    'soft_rm': dict(loss='anchored.relative_max', extreme=2.0),  # with soft margins: models D and E
    'soft_am': dict(loss='anchored.absolute_max', extreme=1.0),
    # distillation: DBL, table II, and SP of its code
    'dr': dict(loss='distillation.rank_distillation', reduction='mean', hard=True),  # as in the released code
    'rkd': dict(loss='distillation.relational_distillation', weight=5.0, reduction='mean'),
    'sp': dict(loss='distillation.similarity_preserving', weight=10.0, reduction='mean'),
    'dml': dict(loss='distillation.mutual_learning', reduction='mean'),
    'dino': dict(loss='distillation.self_distillation', reduction='mean'),
    'inverse_dino': dict(  # DINO*, as in the released code
        loss='distillation.self_distillation', reduction='mean', inverse=True, subtract_entropy=True
    ),
}
SCHEDULE = {  # SCAN, IMRAM and RCL
    'f30k': dict(epochs=30, learning_rate=2e-4, decay_epochs=15),
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=10),
}
CROSS_ATTENTION = {  # option -> loss of the models that attend to regions and words
    'max': LOSS['max'],
    'selhn': dict(LOSS['selhn'], weight=1.0, reduction='sum'),  # as in Li et al. 2023; no code was released
    'softmax': LOSS['softmax'],
}
NOISY = {  # option -> loss for noisy correspondence
    'rcl': dict(loss='noisy.complementary_contrastive', temperature=0.05, reduction='mean'),
    'crcl': dict(loss='noisy.active_complementary', temperature=0.05, reduction='mean'),
    'ncr': dict(loss='noisy.soft_margin', margin=0.2),
    'decl': dict(loss='noisy.evidential', reduction='mean'),
    'mean': dict(loss='ranking.mean_of_hinges', margin=0.2),  # as NCR warms up
    'ladder': dict(loss='noisy.ladder'),
}


def term(loss: dict, **changes: object) -> dict:
    """Returns a term of a loss; by default it is the sum over the queries, with weight 1, in all epochs."""
    return dict(weight=1.0, start_epoch=0, end_epoch=None, reduction='sum') | loss | changes


def rank_with(config: ConfigDict, loss: dict) -> None:
    """Makes `loss` the ranking loss, from the first epoch on."""
    further = {name: term for name, term in config.terms.to_dict().items() if name not in ('ranking', 'warm_up')}
    config.terms = dict(ranking=term(loss), **further)


def schedule_of_ranking(config: ConfigDict) -> dict:
    """Returns the epochs, the weight and the reduction of the ranking term."""
    return {key: config.terms.ranking[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')}


def sum_first(config: ConfigDict, epochs: int) -> None:
    """Trains with the sum of hinges for this many epochs before the ranking loss, if that is one of hinges.

    A config that warms up already stays as it is.
    """
    terms = config.terms.to_dict()
    ranking = terms.pop('ranking')
    if 'margin' not in ranking or 'warm_up' in terms:
        return
    warm_up = term(LOSS['sum'], margin=ranking['margin'], end_epoch=epochs)
    config.terms = dict(warm_up=warm_up, ranking=dict(ranking, start_epoch=epochs), **terms)


def perturb(config: ConfigDict) -> None:
    """Adds perturbed captions to the negatives of images: the swaps of `scenes`, or changed relations."""
    scenes = config.data.source == SCENES['source']
    kinds, graphs = (('swap',), '') if scenes else (('relation',), 'scene_graphs.rules')
    config.candidates = dict(source='perturbed', same_image=config.candidates.same_image, perturbations=kinds)
    config.scene_graphs.source = graphs
    config.augmentation.change_words = 0.0  # perturbed captions are not augmented


def queue(config: ConfigDict) -> None:
    """Ranks 4,096 pairs of past steps too, which an average of the target encodes (momentum of Li et al., 2021)."""
    config.candidates = dict(source='queue', same_image='ignored', encoder='average', length=4096)
    config.members.average = dict(rule='ema', of='target', momentum=0.995)


def mean_term(loss: str, *, weight: float, **arguments: float) -> dict:
    """Returns a term that is active in all epochs and averaged over its queries, captions or tokens."""
    return term(dict(loss=loss), weight=weight, reduction='mean', **arguments)


def warm_up(config: ConfigDict, learning_rate: float, **arguments: float) -> None:
    """Optimizes with AdamW and a rate that rises first, as UNITER, with the arguments of the optimizer."""
    config.optimizer = dict(name='adamw_with_warm_up', learning_rate=learning_rate, factors=dict(), **arguments)


def use_bert(config: ConfigDict) -> None:
    """Encodes texts with BERT base, at a tenth of the learning rate."""
    text = dict(size='base', dropout=0.1, output_dropout=0.0, dtype='float32')
    encode_with_bert(config, 'data/bert-base-uncased', **text)
    config.optimizer.weight_decay = 1e-4


def first_stage(config: ConfigDict) -> dict:
    """Returns `config.stages.first` of a config: without the keys that both stages share."""
    shared = ('data', 'seed', 'run', 'stages')
    return {key: value for key, value in config.to_dict().items() if key not in shared}


def run_of(preset: str) -> str:
    """Returns the run directory of a preset: its options joined by underscores, after the name of its file.

    The name is left out if the options start with it: `runs/tags_dc_base_f30k`, not `runs/tags_tags_dc_base_f30k`.
    """
    file, _, options = preset.replace(',', '_').partition(':')
    return f'runs/{options}' if options.startswith(file) else f'runs/{file}_{options}'
