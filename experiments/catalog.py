"""The experiments of docs/results and docs/recipes.md, in groups by question, and the commands that train them.

`python -m experiments flickr8k` describes the groups, and trains them.
"""

import argparse
import json
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import DOCS
from jitm import configs
from jitm.report.rows import read_rows

MODELS = ('mean', 'fc', 'mlp', 'rvse')
LOSSES = ('sum', 'max', 'sum_max', 'selhn', 'softmax')
ATTENTION = {'scan': 'scan:t2i,avg', 'bfan': 'bfan:equal', 'sgr': 'sgraf:sgr', 'saf': 'sgraf:saf'}
BAG = {'model.text.recurrent': False}  # captions are bags of words
SUMMED = {'terms.ranking.reduction': 'sum', 'terms.ranking.weight': 1.0}  # gradients are clipped as with max of hinges
AVERAGED = {'terms.ranking.reduction': 'mean', 'terms.ranking.weight': 0.5}  # as in the released code for VSE
UNCLIPPED = {'optimizer.clip_norm': 1e9}
AT_005 = {'terms.ranking.temperature': 0.05}  # softmax in rows from before the presets had 0.07
FIRST_AT_005 = {f'stages.first.{key}': value for key, value in AT_005.items()}
PASS = {'epochs': 1, 'optimizer.decay_epochs': 1}
FROM_FIRST = {  # no epoch of sums before max of hinges
    'terms.warm_up.weight': 0.0,
    'terms.warm_up.end_epoch': 1,
    'terms.ranking.start_epoch': 0,
}
CCA = DOCS / 'cca.jsonl'  # what `experiments.cca` keeps
VSEPP = 'mean_sum_max'  # VSE++ with the epoch of sums; other runs are initialized from it


@dataclass(frozen=True)
class Experiment:
    """A setting to be trained.

    Attributes:
      setting: file of configs/ and words, without the data's.
      flags: key -> value of --config; `{name}` in a value is the run directory of that experiment and seed.
      first_stage: the experiment whose equal first stage, or only one, is reused.
      data: the word of the data.
      final: the split that is evaluated once, after training.
    """

    setting: str
    flags: Mapping[str, str | float | bool] = field(default_factory=dict)
    first_stage: str = ''
    data: str = 'f8k'
    final: str = ''

    @property
    def config(self) -> str:
        """The argument of --config."""
        file, _, words = self.setting.partition(':')
        return f'{file}:{words and f"{words},"}{self.data}'

    def needs(self) -> set[str]:
        """Returns the experiments whose runs this one reads."""
        read = {name for value in self.flags.values() for _, name, *_ in string.Formatter().parse(str(value)) if name}
        return read | ({self.first_stage} if self.first_stage else set())


def _from(run: str, *members: str) -> dict[str, str]:
    return {f'members.{member}.init_from': f'{{{run}}}' for member in members}


CELLS = {'data.root': 'data/f8k_cells_precomp'}  # features of SqueezeNet
LITE = {'data.root': 'data/f8k_lite'}  # cells of EfficientNet-Lite0 and tokens of MiniLM
SHORT = {'epochs': 2, 'optimizer.decay_epochs': 2}
NINE = {  # nine regions, 128 dimensions, and splits of which dev selects the epoch and test is reported
    'data.root': 'data/f8k_nine_precomp',
    'batch_size': 64,
    'length_multiple': 12,
    'epochs': 10,
    'optimizer.decay_epochs': 8,
    'model.embed_dim': 128,
}
FULL = {  # the GRU, and splits as for NINE
    'data.root': 'data/f8k_held_out_precomp',
    'model.embed_dim': 512,
    'model.text.recurrent': True,
}
SCALED = {'data.root': 'data/f8k_scaled_precomp'}  # splits as for NINE, features of a standard deviation near 1
HEADLINE = {  # name -> setting and flags
    'sum': ('vse:mean,sum', {}),
    'max': ('vse:mean,max', {}),
    'sum_max': ('vse:mean,sum_max', {}),
    'selhn': ('vse:mean,selhn', {}),
    'selhn_m50': ('vse:mean,selhn', {'terms.ranking.margin': 0.5}),
    'softmax_t07': ('vse:mean,softmax', {}),
    'softmax_t10': ('vse:mean,softmax', {'terms.ranking.temperature': 0.1}),
    'rm_oss': ('dbl:vsepp,rm,oss', {}),
    'rm_oss_softmax': ('recipe:mean,softmax,oss', {}),
    'dml': ('dbl:vsepp,dml,mutual', {}),  # averaged over the queries, as in the released code
    'dml_sum': ('dbl:vsepp,dml,mutual', {'terms.mutual_learning.reduction': 'sum'}),
    'offtri': ('aoq:vsepp,offtri', {}),
    'queue': ('vse:mean,softmax_queue', {}),
}
LITE_HEADLINE = {'data.root': 'data/f8k_lite_tokens'}  # mean cells, scaled, and tokens of LITE; splits as for NINE
SCENES = {  # 2,000 images, of which a batch of 64 has few; dev selects the epoch and test is reported
    'data.train_images': 2000,
    'batch_size': 64,
    'length_multiple': 12,
    'epochs': 12,
    'optimizer.decay_epochs': 8,
    'model.embed_dim': 128,
}
AOQ = {'offtri': 'offline_triplet', 'adapoffquin': 'adaptive_offline_quintuplet'}  # losses of mined negatives
SUMS = {'terms.warm_up.end_epoch': 2, 'terms.ranking.start_epoch': 2}  # the published loss after two epochs
ALIGNED = {'model.alignment_dim': 32}
REASONING = ALIGNED | {'model.image_whole.slots': 9}
NETWORKS = {  # name -> setting and flags
    'scan_t2i': ('scan:t2i,avg', {}),
    'scan_i2t': ('scan:i2t,avg', {}),
    'bfan_equal': ('bfan:equal', {}),
    'bfan_prob': ('bfan:prob', {}),
    'sgr': ('sgraf:sgr', REASONING),
    'saf': ('sgraf:saf', REASONING),
    'imram': ('imram:both', {}),
    'gsmn': ('gsmn', {}),
    'dbl': ('dbl:baseline,max,alone', ALIGNED),
    'naaf': ('naaf', {}),
    'chan': ('chan', {}),
    'maxsim': ('maxsim:both', {}),
    'vsrn': ('vsrn', {'model.caption_dim': 128}),
    'vse_infinity': ('vse_infinity:vse_infinity,gru', {}),
    'esa': ('vse_infinity:esa,gru', {}),
    'mlp': ('vse:mlp,sum_max', {}),
    'rvse': ('vse:rvse,sum_max', {}),
    'mean': ('vse:mean,sum_max', {'model.text.recurrent': True}),
    'linear': ('vse:mean,sum_max', {}),
}
NINE_SCALED = NINE | {'data.root': 'data/f8k_nine_scaled_precomp'}  # features of a standard deviation near 1
SELHN = {  # the mean of both directions, as in the released code
    'terms.ranking.loss': 'ranking.selective_hard_negative',
    'terms.ranking.epsilon': 0.01,
    'terms.ranking.reduction': 'mean',
    'terms.ranking.weight': 0.5,
}
ON_INPUT = {'model.image.mlp': 'residual_on_input'}
POOLED = {  # network -> flags of VSE(MLP), RVSE, VSE-infinity and ESA with a GRU, which differ in MLP and pooling
    'mean': ('mean', {'model.text.recurrent': True}),
    'mlp': ('mlp', {}),
    'rvse': ('rvse', {}),
    'vse_infinity': ('rvse', ON_INPUT),
    'esa': (
        'rvse',
        ON_INPUT
        | {
            'model.image_pooling': 'esa',
            'model.text_pooling': 'esa_uniform',
            'model.text.dropout': 0.1,
            'model.text.word_init': 'normal',
            'augmentation.num_views': 2,
        },
    ),
}
PUBLIC_ANCHOR = _from(f'public_{VSEPP}', 'anchor', 'target')
LOSS_GROUP = {
    f'{model}_{loss}': Experiment(f'vse:{model},{loss}', AT_005 if loss == 'softmax' else {})
    for model in MODELS
    for loss in LOSSES
}
LONGER = {f'{VSEPP}_again': Experiment('vse:mean,max', _from(VSEPP, 'target'))}  # as long as OAS and fine-tuning
OAS = {
    f'vsepp_{loss}_oas': Experiment(f'dbl:vsepp,{loss},oas', _from(VSEPP, 'anchor', 'target')) for loss in ('rm', 'am')
}
PHOTO_LOSSES = {  # word of vsepp.py and flags; published VSE0 does not normalize image vectors, VSE++ does
    'sum': ('vse0', {}),
    'sum_normalized': ('vse0', {'model.normalize_images': True}),
    'max': ('vsepp', {}),
}
UNNORMALIZED = {'max_unnormalized': ('vsepp', {'model.normalize_images': False})}


def _distilled(loss: str, *members: str, factor: int = 1) -> Experiment:
    """Returns a method of OAS, summed, with a factor of its weight, and some members that start from VSE++."""
    flags = {
        'dr': {
            'terms.rank_distillation.reduction': 'sum',
            'terms.rank_distillation.hard': False,  # soft, as the paper
            'terms.rank_distillation.weight': 1.0 * factor,
        },
        'rkd': {'terms.relational_distillation.reduction': 'sum', 'terms.relational_distillation.weight': 5.0 * factor},
        'rm': {},  # is summed, as is AM
        'am': {},
    }
    start = {'members.target.init_from': ''} | _from(VSEPP, *members)
    return Experiment(f'dbl:vsepp,{loss},oas', flags[loss] | start)


def _of_scenes(flags: Mapping[str, str | float | bool]) -> Experiment:
    """Returns SCAN on scenes."""
    return Experiment('scan:t2i,avg', SCENES | flags, data='scenes', final='test')


def _mined(lists: str, loss: str, top_h: int = 500) -> dict[str, str | int]:
    """Returns the flags of a loss of AOQ with lists of captions, and of a fifth as many images."""
    return {
        'terms.ranking.loss': f'offline.{loss}',
        'offline.path': f'{{scenes_max}}/{lists}',
        'offline.top_h_texts': top_h,
        'offline.top_h_images': top_h // 5,
    }


def _weaker(anchor: str) -> dict[str, Experiment]:
    """Returns AM from an anchor that is a run of VSE++, and the same training without the anchor."""
    return {
        f'vsepp_am_oas_{anchor}': Experiment('dbl:vsepp,am,oas', _from(f'{VSEPP}_{anchor}', 'anchor', 'target')),
        f'{VSEPP}_{anchor}_again': Experiment('vse:mean,max', _from(f'{VSEPP}_{anchor}', 'target')),
    }


GROUPS = {
    'losses': {
        **LOSS_GROUP,
        **{f'{model}_selhn_sum': Experiment(f'vse:{model},selhn', SUMMED) for model in MODELS},
        'rvsepp_selhn': Experiment('vse:rvsepp,selhn'),
    },
    'boosting': {
        **{
            f'vsepp_{loss}_{scenario}': Experiment(f'dbl:vsepp,{loss},{scenario}')
            for loss, scenario in (
                *((loss, scenario) for loss in ('rm', 'am') for scenario in ('oss', 'mss')),
                *(('rs', 'oss'), ('as', 'oss'), ('dml', 'mutual'), ('dino', 'mss'), ('inverse_dino', 'mss')),
            )
        },
        **{
            f'vsepp_{loss}_oas': Experiment(f'dbl:vsepp,{loss},oas', _from(VSEPP, 'anchor', 'target'))
            for loss in ('dr', 'rkd')  # averaged over the queries, as in the released code
        },
        **OAS,
        **{  # an average over the last 100 steps
            f'vsepp_{loss}_mss_100': Experiment(f'dbl:vsepp,{loss},mss', {'members.anchor.momentum': 0.99})
            for loss in ('rm', 'am')
        },
        **LONGER,
        f'{VSEPP}_doubled': Experiment('vse:mean,sum_max', {'terms.ranking.weight': 2.0}),
    },
    'offline': {
        'aoq_offtri': Experiment('aoq:vsepp,offtri'),
        **{
            f'aoq_{loss}': Experiment(f'aoq:vsepp,{loss}', first_stage='aoq_offtri')
            for loss in ('offquin', 'adapoffquin', 'finetune')
        },
        **LONGER,
    },
    'recipes': {
        f'recipe_{words.replace(",", "_")}': Experiment(f'recipe:{words}', flags)
        for words, flags in (
            ('mean,selhn,oss', {}),
            ('mean,softmax,oss', AT_005),
            ('mean,selhn,offline', {}),
            ('mean,selhn,oss,offline', {}),
            ('fc,selhn,oss', {}),
            ('rvse,selhn,oss', {}),
            ('rvse,selhn,offline', {}),
            ('rvse,selhn,oss,offline', {}),
            ('rvse,softmax,oss', AT_005),
        )
    },
    'attention': {
        **{f'{name}_max': Experiment(f'{words},max') for name, words in ATTENTION.items()},
        **{f'{name}_selhn': Experiment(f'{words},selhn', AVERAGED) for name, words in ATTENTION.items()},
        **{f'{name}_selhn_sum': Experiment(f'{words},selhn') for name, words in ATTENTION.items()},
        'scan_rm_oss': Experiment('dbl:scan,rm,oss'),
    },
    'margins': {  # the margin of the ranking loss alone; RM keeps 0.2
        **{
            f'{name}_m{margin}': Experiment(setting, {'terms.ranking.margin': margin / 100})
            for name, setting in (
                (VSEPP, 'vse:mean,sum_max'),
                ('mean_selhn', 'vse:mean,selhn'),
                ('recipe_mean_selhn_oss', 'recipe:mean,selhn,oss'),
            )
            for margin in (30, 40, 50)
        },
        'vsepp_rm_oss_first': Experiment('dbl:vsepp,rm,oss', FROM_FIRST | {'terms.relative_max.start_epoch': 0}),
    },
    'clipping': {  # which of the loss, its mean and the clipping at 2.0 makes the plateau; AdamW does not see the scale
        f'{model}_{loss}{suffix}': Experiment(f'vse:{model},{loss}', flags)
        for model in ('mean', 'mlp')
        for loss, suffix, flags in (
            ('max', '', {}),
            ('max', '_mean', AVERAGED),
            ('max', '_unclipped', UNCLIPPED),
            ('selhn', '', {}),
            ('selhn', '_sum', SUMMED),
            ('selhn', '_unclipped', UNCLIPPED),
        )
    },
    'selection': {  # margins that never close, the anchor as a selector of negatives alone, and other anchors for RM
        **{
            f'mean_{loss}_m{margin}': Experiment(f'vse:mean,{loss}', {'terms.ranking.margin': margin / 100})
            for loss, margins in (('max', (40, 50, 100, 200)), ('sum_max', (100, 200)))
            for margin in margins
        },
        **{
            f'selected{suffix}': Experiment(
                'dbl:vsepp,rm,oss', {'terms.relative_max.loss': 'experiments.controls.selected_by_anchor'} | flags
            )
            for suffix, flags in (('', {}), ('_m200', {'terms.relative_max.margin': 2.0}))
        },
        'untrained': Experiment('vse:mean,max', PASS | {'optimizer.learning_rate': 1e-9}),
        'rm_untrained': Experiment('dbl:vsepp,rm,oas', {'members.target.init_from': ''} | _from('untrained', 'anchor')),
        'rm_cider': Experiment(
            'dbl:vsepp,sam,alone',
            {'terms.adaptive.loss': 'experiments.controls.relative_to_relevance', 'terms.adaptive.start_epoch': 1},
        ),
    },
    'distillation': {  # summed, at the published weight; gradients are clipped as for RM and AM
        **{f'vsepp_{loss}_oas_sum': _distilled(loss, 'anchor', 'target') for loss in ('dr', 'rkd')},
        **{f'vsepp_{loss}_oas_random': _distilled(loss, 'anchor') for loss in ('dr', 'rkd', 'rm', 'am')},
        **{
            f'vsepp_{loss}_sum': Experiment(f'dbl:vsepp,{loss},{scenario}', {f'terms.{term}.reduction': 'sum'})
            for loss, scenario, term in (
                ('dml', 'mutual', 'mutual_learning'),
                ('dino', 'mss', 'self_distillation'),
            )
        },
        **OAS,
        **LONGER,
    },
    'weights': {  # factors of the published weights of DR and RKD
        f'vsepp_{loss}_oas_random_x{factor}': _distilled(loss, 'anchor', factor=factor)
        for loss in ('dr', 'rkd')
        for factor in (3, 10, 30, 100)
    },
    'quintuplets': {  # with the lists that aoq_offtri mined
        **{
            f'aoq_{loss}_h60': Experiment(
                f'aoq:vsepp,{loss}', {'offline.top_h_texts': 60, 'offline.top_h_images': 12}, first_stage='aoq_offtri'
            )
            for loss in ('offtri', 'offquin', 'adapoffquin')
        },
        **{
            f'aoq_{loss}': Experiment(f'aoq:vsepp,{loss}', first_stage='aoq_offtri')
            for loss in ('onlyoffline', 'onlinequin', 'withoutadap')  # table 3
        },
        f'{VSEPP}_b16': Experiment('vse:mean,sum_max', {'batch_size': 16}),
        **{
            f'aoq_{loss}_b16': Experiment(f'aoq:vsepp,{loss}', {'batch_size': 16}, first_stage='aoq_offtri')
            for loss in ('offtri', 'offquin', 'adapoffquin')
        },
    },
    'dropout': {
        f'dropout_{loss}_{scenario}{suffix}': Experiment(
            f'dbl:vsepp,{loss},{scenario}', {'model.text.dropout': 0.4} | (flags if suffix else {})
        )
        for suffix in ('', '_first')
        for loss, scenario, flags in (
            ('max', 'alone', FROM_FIRST),
            ('rm', 'mss', FROM_FIRST | {'terms.relative_max.start_epoch': 0}),
            ('am', 'mss', FROM_FIRST | {'terms.absolute_max.start_epoch': 0}),
        )
    },
    'reductions': {
        'scan_max_mean': Experiment(
            ATTENTION['scan'], {'terms.warm_up.reduction': 'mean', 'terms.ranking.reduction': 'mean'}
        ),
        'scan_selhn_slow': Experiment(f'{ATTENTION["scan"]},selhn', AVERAGED | {'optimizer.learning_rate': 2e-4}),
        'scan_selhn_clipped': Experiment(  # the first epochs of the sum over 256 queries, clipped at 2, in other units
            f'{ATTENTION["scan"]},selhn', AVERAGED | {'optimizer.clip_norm': 2 / 256, 'epochs': 2}
        ),
    },
    'batch_sizes': {  # 1,872 steps; n127: as many negatives as a batch of 128 has
        f'mean_{loss}_steps_b{size}{suffix}': Experiment(
            f'vse:mean,{loss}',
            {
                'batch_size': size,
                'epochs': size // 16,
                'optimizer.decay_epochs': 6 * size // 128,
                'candidates.same_image': 'ignored',
            }
            | flags,
        )
        for size, loss, suffix, flags in (
            *((size, loss, '', {}) for size in (64, 128, 256) for loss in ('max', 'selhn')),
            *((size, 'softmax', '', AT_005) for size in (64, 128, 256)),
            (256, 'max', '_n127', {'candidates.num_negatives': 127}),
        )
    },
    'queues': {  # 1,872 steps, as in batch_sizes
        f'mean_{name}_steps_b{size}': Experiment(
            f'vse:mean,{loss}',
            {'batch_size': size, 'epochs': size // 16, 'optimizer.decay_epochs': 6 * size // 128} | flags,
        )
        for size in (64, 128)
        for name, loss, flags in (
            ('softmax_t07', 'softmax', {'candidates.same_image': 'ignored'}),
            ('queue1', 'softmax_queue', {'candidates.length': 1}),  # the averaged encoder alone
            ('queue512', 'softmax_queue', {'candidates.length': 512}),
            ('queue4096', 'softmax_queue', {}),
        )
    }
    | {'mean_softmax_smoothed': Experiment('vse:mean,softmax', AT_005 | {'terms.ranking.label_smoothing': 0.1})},
    'perturbed': {
        f'mean_softmax_{negatives}': Experiment(f'recipe:mean,softmax,{negatives}', AT_005 | flags)
        for negatives, flags in (
            ('perturbed', {}),
            ('offline', FIRST_AT_005),
            ('perturbed_offline', FIRST_AT_005),
        )
    },
    'photos': {
        **{
            f'photo_{name}_{loss}': Experiment(
                f'vsepp:{system},squeezenet,{tuning}',
                BAG | flags,
                first_stage=f'photo_rc_{loss}' if name == 'finetuned' else '',
            )
            for loss, (system, flags) in PHOTO_LOSSES.items()
            for name, tuning in (('rc', 'frozen'), ('finetuned', 'finetuned'), ('scratch', 'scratch'))
        },
        **{
            f'photo_rc_{loss}_longer': Experiment(  # as long as fine-tuning, with its rate
                'vsepp:vse0,squeezenet,frozen',
                {
                    **BAG,
                    **_from(f'photo_rc_{loss}', 'target'),
                    'initialize.image': '',
                    'epochs': 4,
                    'optimizer.learning_rate': 5e-5,
                    'terms.ranking.loss': f'ranking.{loss}_of_hinges',
                    'model.normalize_images': loss == 'max',
                },
            )
            for loss in ('sum', 'max')
        },
        'photo_clip': Experiment('clip:softmax'),
    },
    'normalization': {  # docs/photos.md has the commands that encode crops once
        f'photo_{crops}_{loss}{suffix}': Experiment(f'vsepp:{system}', BAG | flags | rate, data=f'f8k_{crops}')
        for suffix, rate in (('', {}), ('_slow', {'optimizer.learning_rate': 2e-4}))
        for loss, (system, flags) in (PHOTO_LOSSES | UNNORMALIZED).items()
        for crops in ('1c', '10c')
    },
    'centre_crops': {  # a rate that keeps the parameters: only the validation on the centre of the photos is new
        f'photo_rc_{loss}_centre': Experiment(
            f'vsepp:{system},squeezenet,frozen',
            BAG
            | flags
            | _from(f'photo_rc_{loss}', 'target')
            | {'initialize.image': '', 'data.short_side': 128, 'epochs': 1, 'optimizer.learning_rate': 1e-9},
        )
        for loss, (system, flags) in PHOTO_LOSSES.items()
    },
    'collapse': {
        **{f'{model}_{loss}': LOSS_GROUP[f'{model}_{loss}'] for model in ('mlp', 'rvse') for loss in ('max', 'selhn')},
        'saf_max_first': Experiment(f'{ATTENTION["saf"]},max', FROM_FIRST | {'epochs': 3}),
        'saf_selhn_first': Experiment(f'{ATTENTION["saf"]},selhn', {'epochs': 3}),
    },
    'temperatures': {
        **{
            f'mean_softmax_t{percent:02}': Experiment('vse:mean,softmax', {'terms.ranking.temperature': percent / 100})
            for percent in (2, 3, 7, 10, 15, 20)
        },
        'mean_softmax_learned': Experiment('vse:mean,softmax_learned'),
    },
    'methods': {
        **{system: Experiment(f'vsepp:{system}') for system in ('order0', 'orderpp')},
        'orderpp_sum': Experiment('vsepp:orderpp', {'terms.ranking.loss': 'ranking.sum_of_hinges'}),
        'order0_published': Experiment(
            'vsepp:order0', {'optimizer.learning_rate': 1e-3, 'epochs': 30, 'optimizer.decay_epochs': 15}
        ),
        **{f'mean_{loss}': Experiment(f'vse:mean,{loss}') for loss in ('shn', 'sct')},
        'mean_sum_sct': Experiment('vse:mean,sum_max', {'terms.ranking.loss': 'ranking.selective_contrastive'}),
        **{f'vsepp_{loss}': Experiment(f'dbl:vsepp,{loss},alone') for loss in ('sam', 'cmpm', 'mpl')},
        **{
            f'vsepp_{loss}_oss': Experiment(f'dbl:vsepp,{loss},oss')
            for loss in ('soft_rm', 'soft_am', 'rs_as', 'rm_am')  # models D, E, H and I
        },
        **{f'vsepp_{loss}_oss3': Experiment(f'dbl:vsepp,{loss},oss3') for loss in ('rm', 'am')},
        'vsepp_rm_oss4': Experiment('dbl:vsepp,rm,oss4'),
        'vsepp_dml4': Experiment('dbl:vsepp,dml,mutual4'),
    },
    'sweeps': {
        **{
            f'mean_selhn_epsilon_{exponent}': Experiment('vse:mean,selhn', {'terms.ranking.epsilon': 10.0**-exponent})
            for exponent in (4, 3, 1)
        },
        **{
            f'vsepp_rm_oss_gamma_{margin}': Experiment('dbl:vsepp,rm,oss', {'terms.relative_max.margin': margin / 100})
            for margin in (10, 30)
        },
        **{
            f'vsepp_am_oss_alpha_{share}': Experiment('dbl:vsepp,am,oss', {'terms.absolute_max.alpha': share / 100})
            for share in (30, 70)
        },
        f'{VSEPP}_m10': Experiment('vse:mean,sum_max', {'terms.ranking.margin': 0.1}),
        **_weaker('m10'),
    },
    'networks': {
        'vsrn': Experiment('vsrn'),
        'naaf': Experiment('naaf'),
        'esa': Experiment('vse_infinity:esa,gru'),
    },
    'subsets': {
        **{
            f'mean_max_n{number}': Experiment('vse:mean,max', {'candidates.num_negatives': number})
            for number in (2, 4, 8, 16, 32, 64, 127)
        },
        f'{VSEPP}_half': Experiment('vse:mean,sum_max', {'data.train_share': 0.5}),
        **_weaker('half'),
    },
    'noise': {
        f'noise{percent}_{name}': Experiment(setting, {'data.noise_rate': percent / 100} | flags)
        for percent in (20, 40, 60)
        for name, setting, flags in (
            *((loss, f'vse:mean,{loss}', {}) for loss in ('sum', 'sum_max', 'selhn')),
            ('softmax', 'vse:mean,softmax', AT_005),
            *((method, f'noisy:mean,{method}', {}) for method in ('rcl', 'crcl', 'ncr')),
            ('rm_oss', 'dbl:vsepp,rm,oss', {}),
            ('adapoffquin', 'aoq:vsepp,adapoffquin', {}),
            ('dropped', 'vse:mean,sum_max', {'data.noise_dropped': True}),
        )
    }
    | {f'mean_{method}': Experiment(f'noisy:mean,{method}') for method in ('rcl', 'crcl', 'ncr')},
    'public': {
        f'public_{name}': Experiment(setting, {'data.root': 'data/f8k_squeezenet_precomp'} | flags)
        for name, setting, flags in (
            *((f'mean_{loss}', f'vse:mean,{loss}', AT_005 if loss == 'softmax' else {}) for loss in LOSSES),
            *((f'vsepp_{loss}_oss', f'dbl:vsepp,{loss},oss', {}) for loss in ('rm', 'am')),
            *((f'vsepp_{loss}_oas', f'dbl:vsepp,{loss},oas', PUBLIC_ANCHOR) for loss in ('rm', 'am')),
            ('mean_sum_max_again', 'vse:mean,max', _from(f'public_{VSEPP}', 'target')),
        )
    },
    'heads': {
        'heads_grid_gpo': Experiment('vse:fc,softmax', BAG | AT_005),  # features of MobileNetEdgeTPU
        'heads_cells_gpo': Experiment('vse:fc,softmax', BAG | CELLS | AT_005),
        'heads_cells_scan': Experiment('scan:t2i,avg,softmax', BAG | CELLS | AT_005 | {'epochs': 2}),
        'heads_tokens_gpo': Experiment('heads:gpo,softmax', AT_005 | {'epochs': 8, 'optimizer.decay_epochs': 6}),
        'heads_tokens_bag': Experiment(  # patches alone
            'vse:fc,softmax', BAG | AT_005 | {'data.root': 'data/f8k_tokens'}
        ),
    },
    'nine': {
        f'nine_{name}': Experiment(setting, NINE | SUMS | flags, final='test')
        for name, (setting, flags) in NETWORKS.items()
    },
    'nine_losses': {
        **{
            f'nine_{name}_first': Experiment(NETWORKS[name][0], NINE | FROM_FIRST, final='test')
            for name in ('scan_t2i', 'scan_i2t')
        },
        **{f'nine_rvse_{loss}': Experiment(f'vse:rvse,{loss}', NINE, final='test') for loss in ('max', 'selhn')},
        **{
            f'nine_{name}_selhn': Experiment(f'{setting},selhn', NINE | flags, final='test')
            for name, (setting, flags) in NETWORKS.items()
            if name in ('scan_t2i', 'bfan_equal', 'sgr', 'saf')
        },
        **{
            f'nine_dbl_{loss}_{scenario}': Experiment(
                f'dbl:baseline,{loss},{scenario}',
                NINE | SUMS | ALIGNED | {f'terms.{term}.start_epoch': 2} | anchor,
                final='test',
            )
            for loss, term in (('rm', 'relative_max'), ('am', 'absolute_max'))
            for scenario, anchor in (('oss', {}), ('mss', {'members.anchor.momentum': 0.9995}))
        },
    },
    'scaled': {  # losses from the first step, and after two epochs with the sum of hinges, on scaled features
        **{
            f'scaled_{network}_{loss}': Experiment(f'vse:{model},{loss}', NINE_SCALED | flags | changes, final='test')
            for loss, changes in (
                ('max', {}),
                ('selhn', {}),
                ('softmax', {}),
                ('sum_max', SUMS),
            )
            for network, (model, flags) in POOLED.items()
        },
        'scaled_vsrn_max': Experiment('vsrn', NINE_SCALED | FROM_FIRST | NETWORKS['vsrn'][1], final='test'),
        'scaled_vsrn_sum_max': Experiment('vsrn', NINE_SCALED | SUMS | NETWORKS['vsrn'][1], final='test'),
        'scaled_vsrn_selhn': Experiment('vsrn', NINE_SCALED | FROM_FIRST | SELHN | NETWORKS['vsrn'][1], final='test'),
        'scaled_gsmn_max': Experiment('gsmn', NINE_SCALED | FROM_FIRST, final='test'),
        'scaled_gsmn_sum_max': Experiment('gsmn', NINE_SCALED | SUMS, final='test'),
        'scaled_gsmn_selhn': Experiment('gsmn:selhn', NINE_SCALED, final='test'),
        'scaled_gsmn_softmax': Experiment('gsmn:softmax', NINE_SCALED, final='test'),
        'scaled_dbl_sum_max': Experiment(NETWORKS['dbl'][0], NINE_SCALED | SUMS | ALIGNED, final='test'),
    },
    'full': {
        f'full_{name}': Experiment(setting, FULL | flags, final='test')
        for name, setting, flags in (
            ('sum_max', 'vse:mean,sum_max', {}),
            ('selhn_m50', 'recipe:mean,selhn', {'terms.ranking.margin': 0.5}),
            ('softmax_t10', 'recipe:mean,softmax', {'terms.ranking.temperature': 0.1}),
            ('selhn_oss', 'recipe:mean,selhn,oss', {}),
        )
    },
    'headline': {
        f'headline_{name}': Experiment(setting, SCALED | flags, final='test')
        for name, (setting, flags) in HEADLINE.items()
    },
    'lite_headline': {
        f'lite_{name}': Experiment(f'{HEADLINE[name][0]},tokens', LITE_HEADLINE | HEADLINE[name][1], final='test')
        for name in ('sum', 'max', 'sum_max', 'selhn', 'selhn_m50', 'softmax_t07', 'softmax_t10', 'rm_oss')
    }
    | {
        f'lite_rvsepp_{loss}': Experiment(f'vse:rvse,{loss},tokens', LITE_HEADLINE, final='test')
        for loss in ('max', 'selhn')
    },
    'scenes': {'scenes_max': _of_scenes(SUMS)},
    'oracle': {  # with the lists that `experiments oracle` writes below the run of scenes_max
        **{
            f'scenes_{loss}_{lists}_h{top_h}': _of_scenes(SUMS | _mined(lists, name, top_h))
            for top_h in (500, 200, 1000)
            for loss, name in AOQ.items()
            for lists in ('mined', 'false')
        },
        'scenes_again': _of_scenes(FROM_FIRST | _from('scenes_max', 'target')),
        **{
            f'scenes_{loss}_{lists}_again': _of_scenes(FROM_FIRST | _from('scenes_max', 'target') | _mined(lists, name))
            for loss, name in AOQ.items()
            for lists in ('mined', 'false')
        },
    },
    'encoders': {
        'lite_gpo': Experiment('vse:fc,softmax', BAG | LITE | AT_005),
        **{
            f'{features}_{model}': Experiment(f'{setting},softmax', BAG | root | SHORT | AT_005)
            for model, setting in (('scan', 'scan:t2i,avg'), ('sgr', 'sgraf:sgr'))
            for features, root in (('grid', {}), ('cells', CELLS), ('lite', LITE))
        },
        'lite_gru': Experiment('vse:fc,softmax', LITE | AT_005),
        'lite_minilm': Experiment('heads:gpo,softmax', LITE | AT_005 | {'epochs': 8, 'optimizer.decay_epochs': 6}),
        'lite_minilm_frozen': Experiment('heads:gpo,softmax', LITE | AT_005 | PASS),
        'lite_minilm_all': Experiment('vse:fc,softmax,minilm', LITE | AT_005 | PASS),
        'lite_minilm_lora': Experiment('vse:fc,softmax,minilm,lora', LITE | AT_005 | PASS),
        'lite_minilm_layerwise': Experiment('vse:fc,softmax,minilm,layerwise', LITE | AT_005 | PASS),
    },
}

EXPERIMENTS = {name: experiment for group in GROUPS.values() for name, experiment in group.items()}


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name runs: their size, seeds and folder."""
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument(
        '--folder', type=Path, help='the folder of the runs (default: runs/flickr8k, or flickr8k_small)'
    )
    add_size_flag(parser)


def add_size_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that names the size of runs."""
    parser.add_argument(
        '--small', action='store_true', help='256 dimensions, and bags of words where words are averaged'
    )


def known(name: str) -> str:
    """Returns the name of an experiment, as a type of `argparse`, which reports any other."""
    if name not in EXPERIMENTS:
        raise argparse.ArgumentTypeError(f"there is no experiment '{name}'; python -m experiments flickr8k lists them")
    return name


def size(small: bool) -> str:
    """Returns the name of the folder of the runs, and of the file of their rows."""
    return 'flickr8k_small' if small else 'flickr8k'


def folder_of(args: argparse.Namespace) -> Path:
    """Returns the folder of the runs by the flags of `add_run_flags`."""
    return args.folder or Path('runs', size(args.small))


def directory(folder: Path, name: str, seed: int) -> Path:
    """Returns the run directory of an experiment."""
    return folder / f'{name}_s{seed}'


def name_of(run: str) -> str:
    """Returns the experiment of a run directory, which may belong to a second stage."""
    workdir = Path(run)
    return (workdir.parent if workdir.name == 'stage2' else workdir).name.rpartition('_s')[0]


def read_runs(size: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the rows of `docs/SIZE.jsonl` by experiment and seed; none if the file does not exist.

    Their metrics are those of the split that is evaluated once, if there is one, else of the best epoch on dev. A row
    of `CCA`, which has no seed, is repeated for every seed of the file.
    """
    path = DOCS / f'{size}.jsonl'
    rows = read_rows(path).values() if path.exists() else ()
    runs = {(name_of(row['run']), row['seed']): row | {'metrics': row.get('test', row['metrics'])} for row in rows}
    seeds = {seed for _, seed in runs}
    fitted = {
        name: {'epochs': 0, 'rsum_by_epoch': [(0, row['metrics']['rsum'])], 'config': {}} | row
        for name, row in read_cca().items()
    }
    return runs | {(name, seed): row for name, row in fitted.items() for seed in seeds}


def read_cca() -> dict[str, dict[str, Any]]:
    """Returns the metrics and hits that `experiments.cca` keeps by their name."""
    lines = CCA.read_text(encoding='utf-8').splitlines() if CCA.exists() else ()
    return {name: row for line in lines for name, row in json.loads(line).items()}


def command(name: str, seed: int, folder: Path, small: bool = False) -> list[str]:
    """Returns the arguments of `jitm train` for a run."""
    experiment = EXPERIMENTS[name]
    runs = {required: directory(folder, required, seed) for required in experiment.needs()}
    keys = {key: str(value).format_map(runs) for key, value in experiment.flags.items()}
    if small:
        model = configs.load(experiment.config).model
        bag = 'recurrent' in model.get('text', {}) and model.get('text_pooling') == 'mean'  # GPO needs the GRU
        keys = {'model.embed_dim': 256} | (BAG if bag else {}) | keys
    if two_stages(name):
        keys |= {f'stages.first.{key}': value for key, value in keys.items() if key.startswith('model.')}
    keys |= {'seed': seed, 'run.checkpoint_every': 2000}
    return [
        *('train', '--config', experiment.config, '--workdir', str(directory(folder, name, seed))),
        *(f'--config.{key}={value}' for key, value in keys.items()),
    ]


def in_order(names: Iterable[str]) -> list[str]:
    """Returns experiments with the experiments whose runs they read, in the order of training."""
    ordered = {}
    for name in names:
        ordered |= dict.fromkeys((*in_order(sorted(EXPERIMENTS[name].needs())), name))
    return list(ordered)


def two_stages(name: str) -> bool:
    """Whether an experiment has two stages."""
    return bool(configs.load(EXPERIMENTS[name].config).stages)


def scored(workdir: Path, name: str) -> Path:
    """Returns the run directory with the scores of an experiment: the second of two stages."""
    return workdir / 'stage2' if two_stages(name) else workdir
