"""The reduced variants, with which the numbers of the docs were measured."""

import pytest

from tests.configs.settings import load

NUMBERS = {  # epochs, batch size, learning rate
    'vsrn:f8k': (8, 128, 5e-4),
    'vsepp:vsepp,squeezenet,frozen,f8k': (8, 128, 5e-4),
    'vsepp:vsepp,squeezenet,finetuned,f8k': (4, 128, 5e-5),
    'scan:t2i,avg,f8k': (10, 128, 5e-4),
    'scan:t2i,avg,scenes': (8, 64, 5e-4),
    'bfan:equal,f8k': (10, 128, 5e-4),
    'sgraf:saf,f8k': (10, 128, 5e-4),
    'naaf:f8k': (10, 128, 5e-4),
    'noisy:mean,ncr,f8k': (8, 128, 5e-4),
    'noisy:sgr,crcl,f8k': (10, 128, 5e-4),
    'imram:both,f8k': (10, 128, 5e-4),
    'gsmn:f8k': (10, 64, 5e-4),
    'clip:f8k': (10, 128, 1e-3),
    'clip:scenes': (12, 64, 1e-3),
    'siglip:f8k': (10, 128, 1e-3),
    'siglip:scenes': (12, 64, 1e-3),
    'uniter:pretrain,f8k': (2, 8, 1e-3),
    'uniter:pretrain,scenes': (6, 16, 1e-3),
    'uniter:f8k': (1, 16, 3e-4),
    'uniter:scenes': (1, 8, 3e-4),
    'tags:tags_dc,f8k': (1, 16, 3e-4),
    'tags:tags_dc,scenes': (1, 8, 3e-4),
    'oscar:f8k': (8, 32, 1e-3),
    'oscar:scenes': (8, 16, 1e-3),
}


@pytest.mark.parametrize('preset', NUMBERS)
def test_schedules(preset):
    config = load(preset)
    assert (config['epochs'], config['batch_size'], config['optimizer']['learning_rate']) == NUMBERS[preset]
    size = config['model'].get('embed_dim') or config['model']['size']
    assert size in (512, 256, 128, 'tiny')


WARM_UP = {  # epochs of sums before max of hinges
    'vsepp:vsepp,f8k': 1,
    'vsepp:vsepp,f8k_1c': 3,
    'vsepp:vsepp,squeezenet,frozen,f8k': 3,
    'vsepp:vsepp,squeezenet,scratch,f8k': 6,
    'scan:t2i,avg,scenes': 1,
    'clip:max,f8k': 1,
    'siglip:max,scenes': 1,
    'dbl:gpo,rm,oss,f8k': 1,
    'vse:rvsepp,selhn,f8k': 1,
    'noisy:mean,ncr,f8k': 2,  # of means
    'noisy:vsrn,mean_max,f8k': 2,
    'noisy:sgr,rcl,f8k': 0,
    'vse:fc,max,f8k': 0,
    'vsepp:vsepp,squeezenet,finetuned,f8k': 0,
    'scan:t2i,avg,selhn,f8k': 0,
}


@pytest.mark.parametrize('preset', WARM_UP)
def test_epochs_of_sums(preset):
    terms = load(preset)['terms']
    assert terms.get('warm_up', {'end_epoch': 0})['end_epoch'] == WARM_UP[preset]
    others = {name: term for name, term in terms.items() if name not in ('warm_up', 'caption')}
    assert all(term['start_epoch'] == WARM_UP[preset] for term in others.values())


def test_average_of_mss_moves_as_far_as_the_published_one():
    assert load('dbl:vsepp,rm,mss,f8k')['members']['anchor']['momentum'] == 0.9988


@pytest.mark.parametrize(
    'words', ['vsepp:vsepp', 'vsepp:vse0', 'vse:mean,selhn', 'vse:mean,softmax', 'aoq:vsepp,offtri']
)
def test_reduced_dual_encoders_share_one_setting(words):
    config = load(f'{words},f8k')
    model, optimizer = config['model'], config['optimizer']
    assert (model['embed_dim'], model['image_pooling'], model['text_pooling']) == (512, 'mean', 'mean')
    assert (model['text']['word_dim'], model['text']['bidirectional']) == (300, True)
    assert (config['augmentation']['drop_regions'], config['augmentation']['change_words']) == (0, 0)
    assert (optimizer['learning_rate'], optimizer['weight_decay'], optimizer['clip_norm']) == (5e-4, 0.01, 2.0)
    assert (config['batch_size'], config['epochs'], optimizer['decay_epochs']) == (128, 8, 6)


def test_max_of_hinges_of_reduced_systems_follows_epochs_of_sums():
    assert load('vsepp:vsepp,f8k') == load('vse:mean,sum_max,f8k')
    for words in (
        'vsepp:vsepp',
        'scan:',
        'bfan:',
        'sgraf:sgr',
        'naaf:',
        'imram:both',
        'gsmn:',
        'vsrn:',
        'dbl:vsepp,rm,oss',
        'aoq:vsepp,offtri',
    ):
        terms = load(f'{words},f8k'.replace(':,', ':'))['terms']
        assert terms['warm_up']['loss'] == 'ranking.sum_of_hinges', words
        epochs = 4 if words.startswith('sgraf') else 1
        assert terms['warm_up']['end_epoch'] == terms['ranking']['start_epoch'] == epochs, words
    for words in ('aoq:vsepp,finetune', 'dbl:vsepp,rm,oas'):
        assert all(term['start_epoch'] == 0 for term in load(f'{words},f8k')['terms'].values()), words
