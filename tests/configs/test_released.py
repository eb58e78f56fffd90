"""What the configs take from released code, written down independently of configs/."""

import pytest

from tests.configs.settings import load

DROPS_LAST = {  # the last, smaller batch of an epoch
    'vsepp:vsepp': False,
    'scan:t2i,avg': False,
    'bfan:equal': False,
    'vsrn:': False,
    'sgraf:sgr': False,
    'sgraf:saf': False,
    'naaf:': False,
    'imram:both': False,
    'dbl:baseline,max,alone': False,
    'dbl:naaf,rm,oss': False,
    'aoq:vsrn,adapoffquin': False,
    'vse:rvse,selhn': True,
    'vse:rvsepp,selhn': True,
    'vse_infinity:vse_infinity,bert': True,
    'vse_infinity:esa,gru': True,
    'dbl:esa,rm,oss': True,
    'noisy:sgr,ncr': True,
}


@pytest.mark.parametrize('words', DROPS_LAST)
def test_last_batch_is_kept_or_dropped_as_released(words):
    for data in ('f30k', 'coco'):
        config = load(f'{words},{data}'.replace(':,', ':'))
        assert config['drop_last'] == DROPS_LAST[words]
        assert config['stages'].get('first', config)['drop_last'] == DROPS_LAST[words]
    assert load(f'{words},f8k'.replace(':,', ':'))['drop_last']


def test_small_settings_have_batches_of_one_size():
    for words in ('demo:', 'scan:t2i,avg,scenes', 'uniter:uniter,scenes', 'tags:tags,f8k', 'uniter:pretrain,f8k'):
        assert load(words)['drop_last'], words


ESA = {  # pooling of words, and the initialization of words and of the linear layer after BERT
    'gru': ('esa_uniform', 'normal', None),
    'bert': ('esa', None, 'xavier'),
}


@pytest.mark.parametrize('text', ESA)
def test_initialization_of_esa(text):
    esa, vse_infinity = (load(f'vse_infinity:{system},{text},f30k')['model'] for system in ('esa', 'vse_infinity'))
    assert (esa['text_pooling'], esa['text'].get('word_init'), esa['text'].get('linear_init')) == ESA[text]
    assert esa['image_pooling'] == 'esa'
    others = vse_infinity, load('vse:rvsepp,selhn,f30k')['model'], load('vse_infinity:esa,gru,f8k')['model']
    for model in others:
        assert {model['text'].get(key, 'uniform') for key in ('word_init', 'linear_init')} == {'uniform'}


DISTILLATION = {  # of DBL's code: the weight and the options of each direction's mean
    'dr,oas': ('rank_distillation', {'weight': 1.0, 'hard': True}),
    'rkd,oas': ('relational_distillation', {'weight': 5.0}),
    'sp,oas': ('similarity_preserving', {'weight': 10.0}),
    'dml,mutual': ('mutual_learning', {'weight': 1.0}),
    'dino,mss': ('self_distillation', {'weight': 1.0}),
    'inverse_dino,mss': ('self_distillation', {'weight': 1.0, 'inverse': True, 'subtract_entropy': True}),
}


@pytest.mark.parametrize('words', DISTILLATION)
def test_distillation_of_dbl(words):
    name, options = DISTILLATION[words]
    schedule = {'loss': f'distillation.{name}', 'reduction': 'mean', 'start_epoch': 0, 'end_epoch': None}
    assert load(f'dbl:baseline,{words},f30k')['terms'][name] == schedule | options
