"""The hyper-parameters of the papers and of their released code, written down independently of configs/."""

import pytest

from jitm.config import schema
from tests.configs.settings import load, of_losses, without_defaults

ALWAYS = {'start_epoch': 0, 'end_epoch': None}

VSEPP = {  # Faghri et al. 2018: loss, margin, learning rate, model, whether images are normalized, absolute values
    'vse0,f30k': ('ranking.sum_of_hinges', 0.2, 2e-4, 'vse.VSE', False, False),
    'vsepp,f30k': ('ranking.max_of_hinges', 0.2, 2e-4, 'vse.VSE', True, False),
    'vsepp,coco': ('ranking.max_of_hinges', 0.2, 2e-4, 'vse.VSE', True, False),
    'order0,10crop': ('ranking.sum_of_hinges', 0.05, 1e-3, 'vse.OrderEmbedding', True, True),
    'orderpp,10crop': ('ranking.max_of_hinges', 0.2, 2e-4, 'vse.OrderEmbedding', True, False),
}


@pytest.mark.parametrize('words', VSEPP)
def test_vsepp(words):
    config = load(f'vsepp:{words}')
    term, model, optimizer = config['terms']['ranking'], config['model'], config['optimizer']
    vectors = (model['name'], model['normalize_images'], model['absolute'])
    assert (term['loss'], term['margin'], optimizer['learning_rate'], *vectors) == VSEPP[words]
    assert (config['epochs'], config['batch_size']) == (30, 128)
    assert (model['embed_dim'], model['text']['word_dim']) == (1024, 300)
    assert (optimizer['decay_epochs'], optimizer['clip_norm']) == (15, 2.0)
    assert term['reduction'] == 'sum'


@pytest.mark.parametrize(
    ('words', 'network', 'restval'),
    [
        ('vsepp,vgg19,finetuned,coco_rv', 'cnn.VGG19', True),
        ('vse0,resnet152,finetuned,coco_rv', 'cnn.ResNet', True),
        ('vsepp,resnet152,finetuned,f30k', 'cnn.ResNet', True),
    ],
)
def test_vsepp_on_photos(words, network, restval):
    """Section 3.2: 30 epochs with the frozen network, then 15 epochs of all parameters at 2e-5."""
    config = load(f'vsepp:{words}')
    first = config['stages']['first']
    assert (first['epochs'], first['optimizer']['learning_rate'], first['optimizer']['decay_epochs']) == (30, 2e-4, 15)
    assert first['optimizer']['factors'] == {'network': 0}
    assert (config['epochs'], config['optimizer']['factors'], config['stages']['fine_tune']) == (15, {}, True)
    assert config['optimizer']['learning_rate'] == pytest.approx(2e-5)
    assert config['optimizer']['decay_epochs'] >= 15
    image, data = config['model']['image'], config['data']
    assert (image['network']['name'], image['network']['pooled'], image['normalize_features']) == (network, True, True)
    assert (data['image_size'], data['short_side']) == (224, 256)
    given = {'crop': 'random', 'flip': True, 'restval': restval}
    assert without_defaults('jitm.data', data | given) == without_defaults('jitm.data', data)
    assert (
        config['model']
        == first['model']
        == {**load('vsepp:vsepp,f30k')['model'], 'image': image}
        | ({'normalize_images': False} if 'vse0' in words else {})
    )
    assert not load('vsepp:vsepp,vgg19,frozen,coco')['data']['restval']


VSRN = {  # Li et al. 2019: normalization before the graph, batch normalization, epochs until the rate decays
    'f30k': (False, True, 10),
    'coco': (True, False, 15),
}


@pytest.mark.parametrize('data', VSRN)
def test_vsrn(data):
    config = load(f'vsrn:{data}')
    terms, model, optimizer = config['terms'], config['model'], config['optimizer']
    assert (model['normalize_before_graph'], model['batch_norm'], optimizer['decay_epochs']) == VSRN[data]
    assert config['data']['root'] == f'data/{data}_precomp'
    assert (config['epochs'], config['batch_size'], config['evaluation']['every_steps']) == (30, 128, 500)
    assert (model['embed_dim'], model['word_dim'], model['graph_layers']) == (2048, 300, 4)
    assert (model['caption_dim'], model['caption_dropout'], model['caption_length']) == (512, 0.2, 60)
    assert (optimizer['learning_rate'], optimizer['clip_norm']) == (2e-4, 2.0)
    always = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}
    assert terms == {
        'ranking': {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'reduction': 'sum'} | always,
        'caption': {'loss': 'tokens.captioning', 'reduction': 'mean'} | always,
    }


@pytest.mark.parametrize(('data', 'batch_size'), [('f30k', 128), ('coco', 256)])
def test_naaf(data, batch_size):
    config = load(f'naaf:{data}')
    model, optimizer, term = config['model'], config['optimizer'], config['terms']['ranking']
    assert (config['epochs'], config['batch_size'], optimizer['decay_epochs']) == (20, batch_size, 10)
    assert (optimizer['learning_rate'], optimizer['weight_decay'], optimizer['clip_norm']) == (5e-4, 0, 2.0)
    assert (model['embed_dim'], model['text']['word_dim'], model['text']['bidirectional']) == (1024, 300, True)
    assert (model['lambda_softmax'], model['lambda_smoothing']) == (20, 5)
    assert (model['alpha'], model['minimum_words']) == (2, 200)
    assert config['data']['root'] == f'data/{data}_precomp'
    assert 'glove' in config['initialize']['word_vectors']
    assert (term['loss'], term['margin'], term['reduction']) == ('ranking.max_of_hinges', 0.2, 'sum')


SELHN = {  # Li et al. 2023, tables 1 and 3: the image MLP and the loss
    'fc,sum': ('none', 'sum_of_hinges'),
    'fc,max': ('none', 'max_of_hinges'),
    'fc,shn': ('none', 'semi_hard_hinge'),
    'fc,sct': ('none', 'selective_contrastive'),
    'fc,selhn': ('none', 'selective_hard_negative'),
    'mlp,sum': ('plain', 'sum_of_hinges'),
    'mlp,max': ('plain', 'max_of_hinges'),
    'mlp,selhn': ('plain', 'selective_hard_negative'),
    'rvse,sum': ('residual', 'sum_of_hinges'),
    'rvse,max': ('residual', 'max_of_hinges'),
    'rvse,selhn': ('residual', 'selective_hard_negative'),
}


@pytest.mark.parametrize('words', SELHN)
def test_vse(words):
    config, reduced = load(f'vse:{words},f30k'), load(f'vse:{words},f8k')
    term, model, optimizer = config['terms']['ranking'], config['model'], config['optimizer']
    assert (model['image']['mlp'], term['loss'].removeprefix('ranking.')) == SELHN[words]
    assert term['margin'] == 0.2
    if words.endswith('selhn'):
        assert (term['epsilon'], term['weight'], term['reduction']) == (0.01, 0.5, 'mean')
    else:
        assert (term['weight'], term['reduction']) == (1.0, 'sum')
    assert (model['image_pooling'], model['text_pooling'], model['embed_dim']) == ('gpo', 'gpo', 1024)
    assert (model['text']['name'], model['text']['bidirectional']) == ('text.GRUEncoder', True)
    assert (config['epochs'], config['batch_size'], optimizer['learning_rate']) == (20, 128, 5e-4)
    assert optimizer['decay_epochs'] >= config['epochs']
    assert (optimizer['weight_decay'], optimizer['clip_norm']) == (0.01, 2.0)
    assert (config['augmentation']['drop_regions'], config['augmentation']['change_words']) == (0.2, 0.2)
    assert (reduced['epochs'], reduced['model']['embed_dim']) == (8, 512)
    assert (reduced['terms'], reduced['model']['image']) == (config['terms'], model['image'])


@pytest.mark.parametrize(
    'words',
    [
        *('scan:t2i,avg', 'scan:i2t,avg', 'bfan:equal', 'bfan:prob', 'sgraf:sgr', 'sgraf:saf'),
        *('imram:both', 'imram:t2i', 'gsmn:'),
    ],
)
@pytest.mark.parametrize('data', ['f30k', 'coco', 'f8k'])
def test_cross_attention_replaces_only_the_loss_by_summed_selhn(words, data):
    """Li et al. 2023, section 4.2 and equations 9 to 12."""
    config, other = (load(f'{words},{loss},{data}'.replace(':,', ':')) for loss in ('selhn', 'max'))
    selhn = {'loss': 'ranking.selective_hard_negative', 'margin': 0.2, 'epsilon': 0.01, 'weight': 1, 'reduction': 'sum'}
    assert config['terms'] == {'ranking': selhn | ALWAYS}
    assert {**config, 'terms': other['terms']} == other


VSE_INFINITY = {  # image MLP, epochs, pooling, views per pair, whether texts are encoded with BERT
    'vse:rvsepp,selhn': ('residual', 30, 'gpo', 1, True),
    'vse_infinity:vse_infinity,bert': ('residual_on_input', 25, 'gpo', 1, True),
    'vse_infinity:vse_infinity,gru': ('residual_on_input', 25, 'gpo', 1, False),
    'vse_infinity:esa,bert': ('residual_on_input', 25, 'esa', 2, True),
    'vse_infinity:esa,gru': ('residual_on_input', 25, 'esa', 2, False),
}


@pytest.mark.parametrize('data', ['f30k', 'coco'])
@pytest.mark.parametrize('setting', VSE_INFINITY)
def test_rvsepp_vse_infinity_and_esa(setting, data):
    config, (mlp, epochs, pooling, num_views, bert) = load(f'{setting},{data}'), VSE_INFINITY[setting]
    model, optimizer, augmentation = config['model'], config['optimizer'], config['augmentation']
    assert config['data']['root'] == f'data/{data}_precomp'
    assert (model['image']['mlp'], model['image']['norm_padding'], config['epochs']) == (mlp, True, epochs)
    text_pooling = 'esa_uniform' if pooling == 'esa' and not bert else pooling
    assert (model['image_pooling'], model['text_pooling'], augmentation['num_views']) == (
        pooling,
        text_pooling,
        num_views,
    )
    assert (optimizer['learning_rate'], optimizer['decay_epochs']) == (5e-4, 15)
    assert optimizer['weight_decay'] == (1e-4 if bert else 0.01)
    assert optimizer['factors'] == ({'bert': 0.1} if bert else {})
    assert model['text']['name'] == ('text.BERTEncoder' if bert else 'text.GRUEncoder')
    assert augmentation['keep_special_tokens'] == bert
    epochs_of_losses = {term['loss']: (term['start_epoch'], term['end_epoch']) for term in config['terms'].values()}
    if setting.startswith('vse:'):
        assert epochs_of_losses == {'ranking.selective_hard_negative': (0, None)}
    else:
        assert epochs_of_losses == {'ranking.sum_of_hinges': (0, 1), 'ranking.max_of_hinges': (1, None)}


ATTENTION = {  # epochs, learning rate and decay on Flickr30K, the same on COCO, and arguments of the model
    'scan:t2i,avg': ((30, 2e-4, 15), (20, 5e-4, 10), {'direction': 't2i', 'aggregation': 'Mean', 'lambda_softmax': 9}),
    'scan:t2i,lse': (
        (30, 2e-4, 15),
        (20, 5e-4, 10),
        {'aggregation': 'LogSumExp', 'lambda_softmax': 9, 'lambda_lse': 6},
    ),
    'scan:i2t,avg': ((30, 2e-4, 15), (20, 5e-4, 10), {'direction': 'i2t', 'aggregation': 'Mean', 'lambda_softmax': 4}),
    'scan:i2t,lse': ((30, 2e-4, 15), (20, 5e-4, 10), {'aggregation': 'LogSumExp', 'lambda_softmax': 4}),
    'bfan:equal': ((15, 2e-4, 15), (20, 5e-4, 15), {'focal': 'equal', 'lambda_softmax': 20}),
    'bfan:prob': ((15, 2e-4, 15), (20, 5e-4, 15), {'focal': 'prob', 'lambda_softmax': 20}),
    'sgraf:sgr': ((40, 2e-4, 30), (20, 2e-4, 10), {'activation': 'sigmoid', 'alignment_dim': 256, 'lambda_softmax': 9}),
    'sgraf:saf': ((30, 2e-4, 20), (20, 2e-4, 10), {'activation': 'sigmoid', 'alignment_dim': 256, 'lambda_softmax': 9}),
    'dbl:baseline,max,alone': (
        (40, 2e-4, 30),
        (20, 2e-4, 10),
        {'activation': 'tanh', 'image_whole': None, 'lambda_softmax': 9},
    ),
}


IMRAM_AND_GSMN = {  # epochs, rate, decay, batch and lambda on Flickr30K, the same on COCO, arguments of the model
    'imram:both': ((30, 2e-4, 15, 128, 9), (20, 5e-4, 10, 128, 11), {'direction': 'both', 'steps': 3}),
    'imram:t2i': ((30, 2e-4, 15, 128, 9), (20, 5e-4, 10, 128, 11), {'direction': 't2i', 'steps': 3}),
    'imram:i2t': ((30, 2e-4, 15, 128, 9), (20, 5e-4, 10, 128, 11), {'direction': 'i2t', 'steps': 3}),
    'gsmn:': ((30, 2e-4, 15, 64, 20), (20, 5e-4, 5, 32, 10), {'blocks': 16}),
}


@pytest.mark.parametrize('words', IMRAM_AND_GSMN)
def test_imram_and_gsmn(words):
    *schedules, arguments = IMRAM_AND_GSMN[words]
    for data, schedule in zip(('f30k', 'coco'), schedules, strict=True):
        config = load(f'{words},{data}'.replace(':,', ':'))
        model, optimizer, term = config['model'], config['optimizer'], config['terms']['ranking']
        training = config['epochs'], optimizer['learning_rate'], optimizer['decay_epochs'], config['batch_size']
        assert (*training, model['lambda_softmax']) == schedule
        assert (term['loss'], term['margin'], term['reduction']) == ('ranking.max_of_hinges', 0.2, 'sum')
        assert (model['embed_dim'], model['text']['word_dim'], model['text']['bidirectional']) == (1024, 300, True)
        assert arguments.items() <= model.items()
        assert config['data']['root'] == f'data/{data}_precomp'


@pytest.mark.parametrize('words', ATTENTION)
def test_cross_attention(words):
    f30k, coco, arguments = ATTENTION[words]
    for data, schedule in (('f30k', f30k), ('coco', coco)):
        config = load(f'{words},{data}')
        model, optimizer, term = config['model'], config['optimizer'], config['terms']['ranking']
        assert (config['epochs'], optimizer['learning_rate'], optimizer['decay_epochs']) == schedule
        assert (config['batch_size'], optimizer['clip_norm'], optimizer['weight_decay']) == (128, 2.0, 0.0)
        assert (term['loss'], term['margin'], term['reduction']) == ('ranking.max_of_hinges', 0.2, 'sum')
        assert (model['embed_dim'], model['text']['word_dim'], model['text']['bidirectional']) == (1024, 300, True)
        assert model['text']['dropout'] == (0.4 if model['name'] == 'sgraf.SGRAF' else 0.0)
        assert arguments.items() <= model.items()
        assert config['data']['root'] == f'data/{data}_precomp'
    reduced = load(f'{words},f8k')
    assert (reduced['data']['root'], reduced['model']['embed_dim']) == ('data/f8k_precomp', 256)
    for key in ('name', 'lambda_softmax'):
        assert reduced['model'][key] == model[key]


def test_lambda_of_scan_i2t_lse():
    assert [load(f'scan:i2t,lse,{data}')['model']['lambda_lse'] for data in ('f30k', 'coco')] == [5, 20]


AOQ = {  # Chen et al. 2020: epochs and decay of the first stage, both of VSRN
    'f30k': (20, 10),
    'coco': (30, 15),
    'f8k': (8, 6),
}


@pytest.mark.parametrize('data', AOQ)
def test_stages_of_aoq_on_vsrn(data):
    config, alone = load(f'aoq:vsrn,adapoffquin,{data}'), load(f'vsrn:{data}')
    stages, optimizer = config['stages'], config['optimizer']
    first = stages['first']
    assert (first['epochs'], first['optimizer']['decay_epochs']) == AOQ[data]
    assert (stages['top_h_texts'], stages['top_h_images'], stages['fine_tune']) == (300, 60, False)
    if data != 'f8k':
        assert (optimizer['learning_rate'], config['epochs'], optimizer['decay_epochs']) == (2e-4, 20, 10)
        first['epochs'] = config['epochs'] = alone['epochs']
        optimizer['decay_epochs'] = alone['optimizer']['decay_epochs']
    assert first == {key: value for key, value in alone.items() if key not in schema.SHARED}
    ranking, hinges = config['terms'].pop('ranking'), alone['terms'].pop('ranking')
    published = {key: hinges[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')} | {
        'loss': 'offline.adaptive_offline_quintuplet',
        'online_margin': 0.2,
        'offline_margin': 0.0,
        'alpha': 0.3,
        'beta': 1.5,
    }
    assert ranking == without_defaults('jitm.losses', published)
    assert config | {'stages': {}} == alone


TAGS = {  # Fan et al. 2022: rate, tau, m, lambda_ISTM, lambda_MLM, lambda_WoD and lambda_WoC, positives, steps
    'tags,base,f30k': (5e-5, 2.0, 31, 5e-4, 0.05, None, 128, 5000),
    'tags,large,f30k': (5e-5, 2.0, 23, 1e-3, 0.05, None, 256, 5000),
    'tags,base,coco': (5e-5, 1.5, 31, 5e-5, 0.01, None, 256, 5000),
    'tags,large,coco': (4e-5, 1.5, 23, 1e-3, 0.05, None, 256, 5000),
    'tags_dc,base,f30k': (1e-5, 1.5, 31, 5e-4, 0.1, 5e-4, 256, 5000),
    'tags_dc,large,f30k': (1e-5, 1.5, 23, 5e-4, 0.05, 5e-4, 256, 1500),
    'tags_dc,base,coco': (1e-5, 1.5, 31, 1e-4, 0.05, 5e-4, 256, 1500),
    'tags_dc,large,coco': (1e-5, 1.5, 31, 1e-4, 0.05, 5e-4, 256, 5000),
}


@pytest.mark.parametrize('words', TAGS)
def test_tags(words):
    config = load(f'tags:{words}')
    synthesis, terms, optimizer = config['synthesis'], config['terms'], config['optimizer']
    word_weights = {terms[term]['weight'] for term in ('discrimination', 'correction') if term in terms} or {None}
    rate, tau, m, synthetic, masked, word_weight, positives, steps = TAGS[words]
    assert (optimizer['learning_rate'], synthesis['temperature']) == (rate, tau)
    assert (synthesis['num_hard'], config['candidates']['num_hard']) == (m, m)
    assert (terms['synthetic']['weight'], terms['masked']['weight'], word_weights) == (
        synthetic,
        masked,
        {word_weight},
    )
    assert (config['masking']['num_views'], synthesis['num_samples']) == (20, 20)
    assert (config['batch_size'], config['candidates']['num_extra'] + positives) == (positives, 400)
    num_texts = 29_000 * 5 if words.endswith('f30k') else 113_287 * 5
    assert config['epochs'] == max(1, round(steps / (num_texts // positives)))
    assert {terms[term]['margin'] for term in ('ranking', 'synthetic')} == {0.2}
    assert (optimizer['weight_decay'], optimizer['clip_norm'], config['model']['dropout']) == (0.01, 2.0, 0.1)
    first = f'runs/{words.replace("tags_dc", "tags").replace(",", "_")}'
    assert config['members']['target']['init_from'] == (first if word_weight else '')


SECOND_STAGE = {  # Chen et al. 2020, section 4.2: learning rate, epochs, epochs until the rate decays
    'vsrn': (2e-4, 20, 10),
    'bfan_equal': (5e-4, 15, 10),
    'bfan_prob': (5e-4, 15, 10),
    'scan_t2i_avg': (5e-4, 15, 10),
    'scan_i2t_lse': (5e-4, 15, 10),
}


@pytest.mark.parametrize('model', SECOND_STAGE)
def test_second_stage_of_aoq(model):
    for data in ('f30k', 'coco'):
        config, vsrn = load(f'aoq:{model},adapoffquin,{data}'), load(f'vsrn:{data}')
        optimizer, first = config['optimizer'], config['stages']['first']
        assert (optimizer['learning_rate'], config['epochs'], optimizer['decay_epochs']) == SECOND_STAGE[model]
        assert first['model'] == vsrn['model']
        assert (config['stages']['top_h_texts'], config['stages']['top_h_images']) == (300, 60)


AOQ_LOSSES = {  # Chen et al. 2020, equations 3 to 5 and table 3
    'offtri': ('offline_triplet', {}),
    'offquin': ('offline_quintuplet', {}),
    'adapoffquin': ('adaptive_offline_quintuplet', {'alpha': 0.3, 'beta': 1.5}),
    'onlinequin': ('online_quintuplet', {}),
    'onlyoffline': ('offline_quintuplet', {'online_weight': 0}),
    'withoutadap': ('adaptive_offline_quintuplet', {'alpha': 0.3, 'beta': 1.5, 'weigh_by_positive': True}),
    'finetune': ('adaptive_offline_quintuplet', {'alpha': 0.3, 'beta': 1.5}),
}


@pytest.mark.parametrize('loss', AOQ_LOSSES)
def test_losses_of_aoq(loss):
    config, (name, options) = load(f'aoq:vsrn,{loss},coco'), AOQ_LOSSES[loss]
    common = {'online_margin': 0.2, 'offline_margin': 0, 'reduction': 'sum', 'weight': 1} | ALWAYS
    published = {'loss': f'offline.{name}', **options, **common}
    assert config['terms']['ranking'] == without_defaults('jitm.losses', published)
    assert config['stages']['fine_tune'] == (loss == 'finetune')


DBL = {  # Diao et al. 2024, table IV: the loss beside the network's own, and the model of the table
    'rm': {'relative_max': {}},  # B
    'am': {'absolute_max': {'alpha': 0.5}},  # C
    'soft_rm': {'relative_max': {'extreme': 2.0}},  # D
    'soft_am': {'absolute_max': {'alpha': 0.5, 'extreme': 1.0}},  # E
    'rs': {'relative_sum': {}},  # F
    'as': {'absolute_sum': {'alpha': 0.5}},  # G
    'rs_as': {'relative_sum': {'weight': 0.5}, 'absolute_sum': {'alpha': 0.5, 'weight': 0.5}},  # H
    'rm_am': {'relative_max': {'weight': 0.5}, 'absolute_max': {'alpha': 0.5, 'weight': 0.5}},  # I
}


@pytest.mark.parametrize('loss', DBL)
def test_losses_of_dbl(loss):
    terms = load(f'dbl:baseline,{loss},oss,f30k')['terms']
    common = {'margin': 0.2, 'weight': 1, 'reduction': 'sum'} | ALWAYS
    assert terms.pop('ranking') == common | {'loss': 'ranking.max_of_hinges'}
    assert terms == of_losses(
        {name: common | {'loss': f'anchored.{name}'} | options for name, options in DBL[loss].items()}
    )


ANCHOR = {  # section III-C: the members beside the target
    'oss': {'anchor': {'rule': 'gradient', 'learn_from': (), 'init_from': ''}},
    'oas': {'anchor': {'rule': 'frozen', 'init_from': 'runs/dbl_baseline_max_alone_f30k'}},
    'mss': {'anchor': {'rule': 'ema', 'of': 'target', 'momentum': 0.99995}},
    'oss3': {
        'anchor': {'rule': 'gradient', 'learn_from': (), 'init_from': ''},
        'anchor_2': {'rule': 'gradient', 'learn_from': ('anchor',), 'init_from': ''},
    },
    'oss4': {
        'anchor': {'rule': 'gradient', 'learn_from': (), 'init_from': ''},
        'anchor_2': {'rule': 'gradient', 'learn_from': ('anchor',), 'init_from': ''},
        'anchor_3': {'rule': 'gradient', 'learn_from': ('anchor', 'anchor_2'), 'init_from': ''},
    },
    'mutual': {'anchor': {'rule': 'gradient', 'learn_from': ('target',), 'init_from': ''}},
    'mutual4': {
        'anchor': {'rule': 'gradient', 'learn_from': ('anchor_2', 'anchor_3', 'target'), 'init_from': ''},
        'anchor_2': {'rule': 'gradient', 'learn_from': ('anchor', 'anchor_3', 'target'), 'init_from': ''},
        'anchor_3': {'rule': 'gradient', 'learn_from': ('anchor', 'anchor_2', 'target'), 'init_from': ''},
    },
}


@pytest.mark.parametrize('scenario', ANCHOR)
def test_scenarios_of_dbl(scenario):
    config = load(f'dbl:baseline,rm,{scenario},f30k')
    members, optimizer = config['members'], config['optimizer']
    target = members.pop('target')
    assert (members, target['learn_from']) == (ANCHOR[scenario], tuple(ANCHOR[scenario]))
    assert target['init_from'] == (members['anchor']['init_from'] if scenario == 'oas' else '')
    assert (config['epochs'], optimizer['decay_epochs'], optimizer['learning_rate']) == (40, 30, 2e-4)
    reasoning = {'reasoning': {'name': 'alignment.Mean'}, 'activation': 'tanh', 'image_whole': None, 'text_whole': None}
    assert reasoning.items() <= config['model'].items()


TABLE_III = {  # Diao et al. 2024: losses without an anchor in place of max of hinges, or beside it
    'sum': {'ranking': {'loss': 'ranking.sum_of_hinges', 'margin': 0.2, 'reduction': 'sum'}},
    'cmpm': {'ranking': {'loss': 'ranking.projection_matching', 'temperature': 0.1, 'reduction': 'mean'}},
    'mpl': {'ranking': {'loss': 'ranking.polynomial', 'margin': 0.2, 'reduction': 'mean'}},
    'sam': {
        'ranking': {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'reduction': 'sum'},
        'adaptive': {'loss': 'ranking.adaptive_margin', 'reduction': 'sum'},
    },
}


@pytest.mark.parametrize('loss', TABLE_III)
def test_losses_without_an_anchor(loss):
    config = load(f'dbl:baseline,{loss},alone,f30k')
    assert config['terms'] == {name: term | {'weight': 1} | ALWAYS for name, term in TABLE_III[loss].items()}
    assert config['candidates']['same_image'] == ('positive' if loss == 'cmpm' else 'negative')
    assert config['relevance']['source'] == ('cider.from_captions' if loss == 'sam' else '')


UNITER = {  # Fan et al. 2022, released: learning rate and epochs, of 5,000 steps of 128 positives at most
    'base,f30k': (5e-5, 4),
    'base,coco': (5e-5, 1),
    'large,f30k': (5e-5, 4),
    'large,coco': (3e-5, 1),
}


@pytest.mark.parametrize('words', UNITER)
def test_uniter(words):
    config = load(f'uniter:uniter,{words}')
    optimizer, candidates = config['optimizer'], config['candidates']
    assert (optimizer['learning_rate'], config['epochs'], config['batch_size']) == (*UNITER[words], 128)
    assert (candidates['num_extra'] + config['batch_size'], candidates['num_hard']) == (400, 31)
    assert (optimizer['warm_up'], optimizer['b2'], optimizer['epsilon']) == (0.1, 0.98, 1e-6)
    assert (optimizer['weight_decay'], optimizer['clip_norm']) == (0.01, 2)
    assert (config['terms']['ranking']['loss'], config['terms']['ranking']['margin']) == ('ranking.mean_of_hinges', 0.2)
    with_words = load(f'uniter:uniter_mlm,{words}')
    assert (with_words['terms']['masked']['weight'], with_words['masking']['num_views']) == (0.1, 20)


OSCAR = {'base': 2e-5, 'large': 1e-5, 'vinvl_base': 2e-5, 'vinvl_large': 7.5e-6}  # learning rates of the model zoo


@pytest.mark.parametrize('size', OSCAR)
def test_oscar(size):
    config = load(f'oscar:alone,{size},coco')
    optimizer = config['optimizer']
    assert (optimizer['learning_rate'], config['epochs'], config['batch_size']) == (OSCAR[size], 30, 128)
    assert (optimizer['weight_decay'], optimizer['epsilon'], optimizer['warm_up']) == (0.05, 1e-8, 0)
    assert config['terms'] == {
        'ranking': {'loss': 'ranking.matching_cross_entropy', 'weight': 1, 'reduction': 'mean'} | ALWAYS
    }


CLIP = {  # Shi et al. 2023 for L/14@336, Miranda et al. 2024 for the others: rate, decay, epochs, batch size, warm-up
    'l14_336,f30k': (1e-5, 0.2, 12, 256, 0),
    'l14_336,coco': (1e-5, 0.2, 6, 256, 0),
    'b32,f30k': (1e-6, 0.1, 10, 400, 0.01),
    'rn50,coco': (1e-6, 0.1, 10, 400, 0.004),
}


BLIP = {  # Li et al. 2022, and the released settings of fine-tuning: image tower, rate, batch size
    'base': ((768, 12, 12, 3072), 1e-5, 256),
    'large': ((1024, 24, 16, 4096), 5e-6, 128),
}


@pytest.mark.parametrize('words', BLIP)
@pytest.mark.parametrize('data', ['f30k', 'coco'])
def test_blip(words, data):
    config = load(f'blip:{words},{data}')
    model, optimizer, data = config['model'], config['optimizer'], config['data']
    keys = 'hidden_dim', 'num_layers', 'num_heads', 'mlp_dim'
    sizes = tuple(model['image'][key] for key in keys)
    assert (sizes, optimizer['learning_rate'], config['batch_size']) == BLIP[words]
    assert tuple(model['text'][key] for key in keys) == BLIP['base'][0]
    assert (model['embed_dim'], model['initial_temperature'], model['image']['epsilon']) == (256, 0.07, 1e-6)
    assert (optimizer['weight_decay'], optimizer['warm_up'], config['epochs']) == (0.05, 0, 6)
    assert (data['image_size'], data['short_side'], data['min_area'], data['flip']) == (384, 0, 0.5, True)
    assert config['terms']['ranking']['loss'] == 'ranking.softmax_contrastive'


@pytest.mark.parametrize(
    ('words', 'sizes', 'text'),
    [
        ('b16_224', (768, 12, 12, 3072), (64, 1)),
        ('siglip2,b32_256', (768, 12, 12, 3072), (64, 0)),
    ],
)
def test_siglip(words, sizes, text):
    """As released; neither paper fine-tunes on captions."""
    config, like = load(f'siglip:{words},f30k'), load('clip:b16,softmax,f30k')
    model, loss = config['model'], config['terms']['ranking']
    keys = 'hidden_dim', 'num_layers', 'num_heads', 'mlp_dim'
    assert tuple(model['image'][key] for key in keys) == sizes
    assert tuple(model['text'][key] for key in keys) == sizes
    assert (model['text']['max_length'], model['text']['pad']) == text
    assert (model['initial_temperature'], model['initial_bias'], model['embed_dim']) == (0.1, -10, sizes[0])
    assert (loss['reduction'], loss['weight'], loss['rankings']) == ('mean', 1, ('i2t',))
    assert not {'temperature', 'bias'} & loss.keys()
    data = config['data']
    assert data['short_side'] == 0
    assert data['interpolation'] == ('bilinear' if 'siglip2' in words else 'bicubic')
    assert data['image_size'] == model['image']['image_size'] == int(words.rpartition('_')[2])
    shared = {'model', 'data', 'terms', 'vocabulary', 'members'}
    assert {key: config[key] for key in config.keys() - shared} == {key: like[key] for key in like.keys() - shared}


@pytest.mark.parametrize('words', CLIP)
def test_clip(words):
    config, size = load(f'clip:softmax,{words}'), words.partition(',')[0]
    optimizer = config['optimizer']
    numbers = (optimizer['learning_rate'], optimizer['weight_decay'], config['epochs'], config['batch_size'])
    assert (*numbers, optimizer['warm_up']) == CLIP[words]
    assert (config['model']['initial_temperature'], optimizer['clip_norm']) == (0.07, 1)
    assert (config['members']['target']['init_from'], config['candidates']['same_image']) == (
        f'runs/clip_{size}',
        'ignored',
    )
    assert 'temperature' not in config['terms']['ranking']


NOISY = {  # the released code: epochs, learning rate and decay on Flickr30K, and the same on COCO
    'sgr,rcl': ((40, 2e-4, 30), (20, 5e-4, 10)),
    'saf,rcl': ((30, 2e-4, 15), (20, 5e-4, 10)),
    'vsrn,rcl': ((30, 2e-4, 15), (20, 5e-4, 10)),
    'sgr,crcl': ((32, 5e-4, 17), (32, 5e-4, 17)),  # the last of several trainings, after two epochs of warm-up
    'sgr,ncr': ((40, 2e-4, 30), (20, 2e-4, 10)),
    'sgr,mean_max': ((40, 2e-4, 30), (20, 2e-4, 10)),
    'saf,decl': ((40, 2e-4, 20), (20, 5e-4, 10)),
    'mean,ladder': ((30, 2e-4, 15), (30, 2e-4, 15)),
}


@pytest.mark.parametrize('words', NOISY)
def test_schedules_of_noisy(words):
    for data, schedule in zip(('f30k', 'coco'), NOISY[words], strict=True):
        config = load(f'noisy:{words},{data}')
        optimizer, ranking = config['optimizer'], config['terms']['ranking']
        assert (config['epochs'], optimizer['learning_rate'], optimizer['decay_epochs']) == schedule
        assert (config['batch_size'], optimizer['clip_norm']) == (128, 2)
        assert config['data']['root'] == f'data/{data}_precomp'
        assert ranking.get('margin', 0.2) == 0.2
        assert ranking.get('temperature', 0.05) == 0.05
        if words == 'saf,decl':
            assert without_defaults('jitm.losses', ranking | {'temperature': 0.1}) == ranking


def test_rcl_replaces_only_the_loss_and_the_schedule():
    for network, own in (('sgr', 'sgraf:sgr'), ('saf', 'sgraf:saf'), ('vsrn', 'vsrn:')):
        config, other = load(f'noisy:{network},rcl,f30k'), load(f'{own},f30k'.replace(':,', ':'))
        loss = {'loss': 'noisy.complementary_contrastive', 'temperature': 0.05}
        assert config['terms'].pop('ranking') == loss | {'weight': 1, 'reduction': 'mean'} | ALWAYS
        other['terms'].pop('ranking')
        differing = {key for key in config if config[key] != other[key]}
        assert differing <= {'epochs', 'drop_last', 'optimizer'}


def test_crcl():
    for network in ('sgr', 'fc'):
        config = load(f'noisy:{network},crcl,f30k')
        augmentation, labels = config['augmentation'], config['labels']
        assert (augmentation['drop_regions'], augmentation['change_words']) == (0.2, 0.2)
        assert config['optimizer']['weight_decay'] == 0.01
        ranking = config['terms']['ranking']
        assert without_defaults('jitm.losses', ranking | {'complementary_weight': 5}) == ranking
        numbers = {'warm_up_epochs': 2, 'momentum': 0.8, 'minimum': 0.1, 'temperature': 0.05}
        assert labels == without_defaults('jitm.training.sources.labels', {'source': 'MovingAverage'} | numbers)


@pytest.mark.parametrize(('data', 'warm_up', 'noisy'), [('f30k', 5, 20), ('coco', 10, 10)])
def test_ncr(data, warm_up, noisy):
    """Two models; SGR* of its tables is one, with the same warm-up before its own loss."""
    config, alone = load(f'noisy:sgr,ncr,{data}'), load(f'noisy:sgr,mean_max,{data}')
    labels = {'source': 'CoTeaching', 'warm_up_epochs': warm_up, 'noisy_epoch': noisy, 'margin': 0.2}
    assert config['labels'] == without_defaults('jitm.training.sources.labels', labels)
    assert config['members']['other'] == config['members']['target'] == alone['members']['target']
    means = {'loss': 'ranking.mean_of_hinges', 'margin': 0.2, 'weight': 1, 'reduction': 'sum'}
    losses = {'noisy.soft_margin': config, 'ranking.max_of_hinges': alone}
    for loss, its in losses.items():
        assert its['terms'] == {
            'warm_up': means | {'start_epoch': 0, 'end_epoch': warm_up},
            'ranking': means | {'loss': loss, 'start_epoch': warm_up, 'end_epoch': None},
        }
    assert load(f'noisy:vsrn,ncr,{data}')['terms'].keys() == {'warm_up', 'ranking', 'caption'}
