"""What cannot be trained together is refused by the names of both keys; all else is traced."""

import copy
import itertools

import pytest

from jitm.errors import UserError
from jitm.training.setup import set_up
from tests.configs.settings import load, start
from tests.golden.steps import DATA, write_files
from tests.support.steps import ALWAYS

TERM = ALWAYS | {'reduction': 'sum'}
ACTIVE = {'labels': TERM | {'loss': 'noisy.active_complementary', 'temperature': 0.1}}
TARGET = {'rule': 'gradient', 'learn_from': (), 'init_from': ''}
OPTIONS = {  # the key that a message names -> sections that are changed
    'augmentation.num_views': {'augmentation': {'num_views': 2}},
    'augmentation.change_words': {'augmentation': {'change_words': 0.2}},
    'augmentation.drop_regions': {'augmentation': {'drop_regions': 0.2}},
    'offline.path': {'terms': {'mined': TERM | {'loss': 'offline.offline_triplet', 'offline_margin': 0.2}}},
    'relevance.source': {
        'relevance': {'source': 'cider.from_captions'},
        'terms': {'ladder': TERM | {'loss': 'noisy.ladder'}, 'sam': TERM | {'loss': 'ranking.adaptive_margin'}},
    },
    'members.target.learn_from': {
        'members': {'target': TARGET | {'learn_from': ('average',)}},
        'terms': {'anchored': TERM | {'loss': 'anchored.relative_max', 'margin': 0.2}},
    },
    'labels.source': {'labels': {'source': 'MovingAverage'}, 'terms': ACTIVE},
    'labels.source of two': {
        'labels': {'source': 'CoTeaching', 'warm_up_epochs': 0, 'noisy_epoch': 1},
        'members': {'other': TARGET},
        'terms': ACTIVE,
    },
}
NUM_VIEWS, CHANGE_WORDS, DROP_REGIONS, OFFLINE, RELEVANCE, LEARN_FROM, *LABELS = OPTIONS
MINED = {frozenset((OFFLINE, other)) for other in (NUM_VIEWS, CHANGE_WORDS, DROP_REGIONS)}
OTHER = {NUM_VIEWS, RELEVANCE, *LABELS}
QUEUE = {'source': 'queue', 'same_image': 'positive', 'encoder': 'average', 'length': 8}
SOURCES = {  # the section `candidates`, and what it excludes
    'in_batch': ({'source': 'in_batch', 'same_image': 'negative'}, set()),
    'some': ({'source': 'in_batch', 'same_image': 'positive', 'num_negatives': 2}, set()),
    'perturbed': (
        {'source': 'perturbed', 'same_image': 'ignored', 'perturbations': ('swap',)},
        OTHER | {CHANGE_WORDS},
    ),
    'in_chunks': ({'source': 'in_chunks', 'same_image': 'positive', 'queries': 2}, OTHER | {OFFLINE, LEARN_FROM}),
    'queue': (QUEUE, OTHER | {OFFLINE, LEARN_FROM}),
    'sampled': ({'source': 'sampled'}, OTHER | {OFFLINE, CHANGE_WORDS, DROP_REGIONS}),
    'shortlist': ({'source': 'shortlist', 'num_extra': 0, 'num_hard': 2}, OTHER | {OFFLINE, LEARN_FROM}),
    'extra': ({'source': 'shortlist', 'num_extra': 4, 'num_hard': 2}, {*OPTIONS}),
}


@pytest.fixture(scope='module')
def mined(tmp_path_factory):
    folder = tmp_path_factory.mktemp('mined')
    write_files(folder)
    return {'path': str(folder / 'candidates'), 'top_h_texts': 4, 'top_h_images': 4}


@pytest.fixture
def config_with(mined):
    def make(source, options):
        config = load('demo')
        config |= {'batch_size': 4, 'length_multiple': 32, 'candidates': SOURCES[source][0]}
        config['data'] = {'source': 'scenes.load', **DATA, **({} if OFFLINE in options else {'noise_rate': 0.5})}
        config['model'] |= {'embed_dim': 4, 'text_pooling': 'mean'}
        config['model']['text'] |= {'word_dim': 4, 'recurrent': False}
        config['terms'] = {'ranking': TERM | {'loss': 'ranking.softmax_contrastive', 'temperature': 0.1}}
        if source == 'queue' or LEARN_FROM in options:
            config['members']['average'] = {'rule': 'ema', 'of': 'target', 'momentum': 0.9}
        for option in options:
            for section, keys in OPTIONS[option].items():
                config[section] |= copy.deepcopy(keys)
        config['offline'] |= mined if OFFLINE in options else {}
        return config

    return make


@pytest.mark.slow
@pytest.mark.parametrize('source', SOURCES)
def test_all_pairs_are_refused_by_name_or_traced(config_with, source):
    excluded = MINED | {frozenset((option,)) for option in SOURCES[source][1]}

    def is_excluded(options):
        return any(pair <= options for pair in excluded) or {*LABELS} <= options

    for options in map(set, [(), *itertools.product(OPTIONS, repeat=2)]):
        if {*LABELS} <= options:
            continue
        config = config_with(source, options)
        if not is_excluded(options):
            start(config)
            continue
        with pytest.raises(UserError) as error:
            start(config)
        keys = {key.partition(' ')[0] for key in ('candidates.source', *options)}
        assert sum(f"'{key}'" in str(error.value) for key in keys) == 2, error.value
    # Trace the largest combinations of what is not excluded.
    largest = {frozenset()}
    for option in {*OPTIONS} - SOURCES[source][1]:
        combined = {option}
        for further in OPTIONS:
            if not is_excluded(combined | {further}):
                combined.add(further)
        largest.add(frozenset(combined))
    for options in largest:
        set_up(config_with(source, options))


@pytest.mark.parametrize(
    ('preset', 'key', 'other'),
    [
        ('uniter:pretrain,scenes', 'masking.num_views', 'augmentation.num_views'),
        ('uniter:pretrain,scenes', 'masking.num_views', 'augmentation.change_words'),
        ('uniter:pretrain,scenes', 'masking.num_views', 'augmentation.drop_regions'),
        ('heads:gpo,softmax,f8k', 'data.token_vectors', 'augmentation.change_words'),
        ('vsrn:f8k', 'terms.caption.loss', 'augmentation.change_words'),
    ],
)
def test_masking_vectors_and_captioning_exclude_augmentation(preset, key, other):
    config = load(preset)
    start(config)
    config['augmentation'] |= OPTIONS[other]['augmentation']
    with pytest.raises(UserError, match=f"config key '{other}' must be .* where '{key}' is"):
        start(config)


def test_the_encoder_of_the_queue_has_the_dimensions_of_the_target(config_with):
    config = config_with('queue', ())
    config['members']['average'] = {'rule': 'frozen', 'init_from': 'run', 'model': config['model'] | {'embed_dim': 8}}
    with pytest.raises(
        UserError, match=r"'candidates.encoder' is 'average', whose vectors have 8 dim.* trains have 4: "
    ):
        set_up(config)
