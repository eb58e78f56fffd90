"""Writes the golden files: python tests/golden/make_before.py."""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ['XLA_FLAGS'] = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import jax
import numpy as np
from jitm.training.setup import set_up

from jitm import config as config_lib
from jitm.data import candidates as candidates_lib
from jitm.data import scenes

jax.config.update('jax_compilation_cache_dir', str(ROOT / '.pytest_cache' / 'jax'))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)

STEPS = """vse0_f30k vsepp_f30k order0_coco orderpp_coco vse_fc_sum_f30k vse_fc_shn_f30k vse_fc_sct_f30k vse_fc_selhn_f30k
vse_mlp_selhn_f30k rvse_mlp_max_f30k rvsepp_f30k vse_infty_f30k vse_infty_bigru_f30k esa_f30k esa_bigru_f30k vsrn_f30k
vsrn_coco scan_t2i_avg_f30k scan_t2i_lse_f30k scan_i2t_avg_f30k scan_i2t_lse_f30k bfan_equal_f30k bfan_prob_f30k sgr_f30k
saf_f30k naaf_f30k dbl_baseline_f30k vsrn_adapoffquin_f30k vsepp_offtri_f8k vsepp_offquin_f8k vsepp_onlinequin_f8k
vsepp_onlyoffline_f8k bfan_equal_adapoffquin_f30k dbl/rm_oss_f30k dbl/am_oss_f30k dbl/rm_oas_f30k dbl/am_mss_f30k
dbl/rm_oss3_f30k dbl/rm_am_oss_f30k dbl/rs_as_oss_f30k dbl/dr_oas_f30k dbl/rkd_oas_f30k dbl/sp_oas_f30k dbl/dml_oss_f30k
dbl/dino_mss_f30k dbl/inverse_dino_mss_f30k dbl/mpl_f30k dbl/sam_f30k dbl/cmpm_f30k dbl/soft_rm_oss_f30k
dbl/vse_fc_rm_oss_f8k dbl/esa_rm_oss_f30k tags/uniter_f30k tags/uniter_mlm_f30k tags/tags_f30k tags/tags_sg_f30k
tags/tags_dc_f30k tags/tags_dc_single_f30k tags/pretrain_f30k""".split()


def load(name):
    return importlib.import_module(f'configs.{name.replace("/", ".")}').get_config().to_dict()


def plain(value):
    return json.loads(json.dumps(value))


def names():
    folder = ROOT / 'configs'
    paths = sorted(path.relative_to(folder).with_suffix('') for path in folder.rglob('*.py'))
    return [str(path) for path in paths if path.name != 'default']


def configs():
    default = config_lib.flatten(plain(load('default')))
    settings = {}
    for name in names():
        flat = config_lib.flatten(plain(load(name)))
        changed = {key: value for key, value in flat.items() if key not in default or default[key] != value}
        settings[name] = {'changed': changed, 'absent': sorted(default.keys() - flat.keys())}
    return {'default': default, 'settings': settings}


SMALL = {'embed_dim': 16, 'word_dim': 8, 'alignment_dim': 8, 'caption_dim': 8, 'size': 'tiny', 'minimum_words': 2,
         'dtype': 'float32'}  # fmt: skip


def shrink(section):
    """Makes a model section tiny."""
    return {key: shrink(value) if isinstance(value, dict) else SMALL.get(key, value) for key, value in section.items()}


DATA = {'source': 'scenes.load', 'seed': 0, 'train_images': 8, 'dev_images': 4, 'test_images': 4}


def write_vocabulary(path):
    split = scenes.load('train', **{key: value for key, value in DATA.items() if key != 'source'})
    words = sorted({word.strip('.,') for caption in split.captions for word in caption.lower().split()})
    path.write_text('\n'.join(('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words)) + '\n')


def write_candidates(folder):
    """Four negatives of each item: those of the images that follow."""
    split = scenes.load('train', **{key: value for key, value in DATA.items() if key != 'source'})
    images, texts = split.num_images, split.num_texts
    own = split.image_of_text
    i2t = np.array([[5 * ((i + n) % images) + n for n in range(1, 5)] for i in range(images)], np.int32)
    t2i = np.array([[(own[t] + n) % images for n in range(1, 5)] for t in range(texts)], np.int32)
    scores = {'i2t': np.zeros(i2t.shape, np.float32), 't2i': np.zeros(t2i.shape, np.float32)}
    manifest = {'data': split.identity}
    candidates_lib.save(candidates_lib.Candidates(i2t, t2i), scores, manifest, 'train', folder)


def tiny(config, folder):
    """The setting with tiny data and sizes, and nothing to begin with."""
    config = plain(config)
    config |= {'data': DATA, 'batch_size': 4, 'epochs': 1, 'length_multiple': 32}
    config['model'] = shrink(config['model'])
    for member in config['members'].values():
        if 'model' in member:
            member['model'] = shrink(member['model'])
    config['initialize'] = dict.fromkeys(config['initialize'], '')
    config['vocabulary'] = {'path': str(folder / 'vocab.txt') if config['vocabulary']['path'] else '', 'min_count': 1}
    config['evaluation']['every_steps'] = None
    if config['stages']:
        config['stages'] = {}
        config['offline'] |= {'candidates': str(folder / 'candidates'), 'top_h_texts': 4, 'top_h_images': 4}
    if config['rankings']['source'] == 'listed':
        config['rankings'] |= {'pool': 4, 'hardest': 3}
    if config['masking']['copies']:
        config['masking']['copies'] = 2
    if config['synthesis']['generator']:
        config['synthesis'] |= {'samples': 2, 'hardest': 3}
    return config


def reduce(tree):
    """A number that changes if any parameter does."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return float(sum(np.cos(np.arange(len(leaf))) @ leaf + np.abs(leaf).sum() for leaf in leaves))


def step(name, folder):
    setup = set_up(tiny(load(name), folder), resuming=True)
    state, lines = setup.draw_state(), []
    for n in range(2):
        state, metrics = setup.train_step(state, setup.make_batch(n))
        metrics = jax.device_get(metrics)
        assert metrics['finite']
        kept = ('loss', 'gradient_norm')
        lines.append({key: float(value) for key, value in metrics.items() if key.split('/', 1)[-1] in kept})
    after = {name: [reduce(m.params), reduce(m.batch_stats)] for name, m in jax.device_get(state).members.items()}
    return {'steps': lines, 'after': after}


if __name__ == '__main__':
    golden = Path(__file__).parent
    if 'configs' in sys.argv:
        (golden / 'configs.json').write_text(json.dumps(configs(), indent=1, sort_keys=True) + '\n')
    if 'steps' in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            write_vocabulary(folder / 'vocab.txt')
            write_candidates(folder / 'candidates')
            results = {}
            for name in STEPS:
                try:
                    results[name] = step(name, folder)
                    print(name, results[name], flush=True)
                except Exception as error:
                    print('FAILED', name, type(error), error, flush=True)
        (golden / 'steps.json').write_text(json.dumps(results, indent=1, sort_keys=True) + '\n')
