"""Compares the runs of docs/results.md with their controls: intervals over images, differences over seeds.

    python -m experiments intervals           # from the rows in docs/flickr8k.jsonl
    python -m experiments intervals --small   # from docs/flickr8k_small.jsonl

Every pair of experiments whose scores `python -m experiments flickr8k` has saved gets rows in
docs/flickr8k_intervals.jsonl, one for each seed and metric: the difference, its interval of 95 % and the number of
images. The table has a line for each pair: the differences of rsum over all seeds that both have.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Row
from experiments import catalog
from experiments.catalog import read_runs
from jitm.files import replacing
from jitm.report.bootstrap import Difference, Hits, difference, hits
from jitm.report.groups import read_run_log
from jitm.report.matrices import Matrix, read_matrices, saved_sims

PATH = ROOT / 'docs' / 'flickr8k_intervals.jsonl'
WAYS = 'i2t', 't2i'
LEVEL, POWER = 0.05, 0.8  # two-sided test
MIN_SEEDS = 3  # two may be nearly equal by chance
KEYS = ('size', 'pair', 'seed', 'metric')  # a row replaces the one with the same values


@dataclass(frozen=True)
class Pair:
    """Two experiments; the treatment is compared with the control.

    Attributes:
      control: The name of an experiment.
      treatment: The name of another one.
      published: The difference of rsum in the paper; None where it is not stated, or so large that it
        would be detected.
    """

    control: str
    treatment: str
    published: float | None = None

    @property
    def name(self) -> str:
        """As a difference."""
        return f'{self.treatment} - {self.control}'


def _pairs(control: str, *treatments: str) -> tuple[Pair, ...]:
    return tuple(Pair(control, treatment) for treatment in treatments)


NOISE = ('sum', 'selhn', 'softmax', 'rm_oss', 'adapoffquin', 'rcl', 'crcl', 'ncr', 'dropped')
MARGINS = ('m30', 'm40', 'm50')
PAIRS = (
    # Faghri et al. 2018
    *_pairs('mean_sum', 'mean_sum_max', 'mean_max', 'mean_selhn'),
    *_pairs('mean_max', 'mean_sum_max'),  # the curriculum of section 3.5
    *(
        pair
        for crops in ('1c', '10c')
        for rate in ('', '_slow')
        for pair in (
            Pair(f'photo_{crops}_sum{rate}', f'photo_{crops}_max{rate}'),
            Pair(f'photo_{crops}_sum{rate}', f'photo_{crops}_max_unnormalized{rate}'),
            Pair(f'photo_{crops}_sum_normalized{rate}', f'photo_{crops}_sum{rate}'),  # section 3
            Pair(f'photo_{crops}_sum_normalized{rate}', f'photo_{crops}_max{rate}'),
            Pair(f'photo_{crops}_sum_normalized{rate}', f'photo_{crops}_max_unnormalized{rate}'),
            Pair(f'photo_{crops}_max{rate}', f'photo_{crops}_max_unnormalized{rate}'),
        )
    ),
    *(Pair(f'photo_1c_{loss}', f'photo_10c_{loss}') for loss in ('sum', 'sum_normalized', 'max', 'max_unnormalized')),
    *(Pair(f'photo_1c_{loss}', f'photo_rc_{loss}_centre') for loss in ('sum', 'sum_normalized', 'max')),
    *(Pair(f'photo_rc_{loss}', f'photo_finetuned_{loss}') for loss in ('sum', 'sum_normalized', 'max')),
    *_pairs('photo_rc_sum_longer', 'photo_finetuned_sum'),
    *_pairs('photo_rc_sum', 'photo_rc_max'),
    *_pairs('photo_rc_sum_normalized', 'photo_rc_sum', 'photo_rc_max'),
    *_pairs('photo_finetuned_sum_normalized', 'photo_finetuned_max'),
    *_pairs('order0', 'orderpp'),  # section 3.7
    *_pairs('orderpp_sum', 'orderpp'),
    *(Pair('mean_max_n127', f'mean_max_n{number}') for number in (2, 4, 8, 16, 32, 64)),  # section 3.6
    *_pairs('mean_sum', 'mean_max_n2'),
    # Chen et al. 2020; published differences of VSRN, the first two on COCO (1K), the last on Flickr30K
    *(
        Pair(f'mean_sum_max{batch}', f'aoq_{loss}{suffix}', published)
        for batch, suffix in (('', ''), ('', '_h60'), ('_b16', '_b16'))
        for loss, published in (('offtri', 1.8), ('offquin', 2.9), ('adapoffquin', 3.7))
    ),
    *(Pair(f'aoq_{loss}', 'aoq_adapoffquin') for loss in ('onlyoffline', 'onlinequin', 'withoutadap', 'offquin')),
    *_pairs('aoq_offquin', 'aoq_onlinequin', 'aoq_withoutadap'),
    *_pairs('mean_sum_max_again', 'aoq_finetune'),
    # Noisy captions
    *_pairs('noise40_sum_max', *(f'noise40_{name}' for name in NOISE)),
    *_pairs('noise40_sum', 'noise40_rcl', 'noise40_crcl', 'noise40_ncr'),
    *_pairs('noise40_softmax', 'noise40_rcl', 'noise40_crcl', 'noise40_ncr'),
    *_pairs('noise40_dropped', 'noise40_rcl', 'noise40_crcl', 'noise40_ncr'),
    *_pairs('noise40_rcl', 'noise40_crcl', 'noise40_ncr'),
    *(
        Pair(f'noise{percent}_{control}', f'noise{percent}_{treatment}')
        for percent in (20, 60)
        for control, treatment in (('sum_max', 'rcl'), ('softmax', 'rcl'), ('sum_max', 'adapoffquin'), ('rcl', 'crcl'))
    ),
    # Other candidates of the softmax
    *_pairs('mean_softmax', 'mean_softmax_perturbed', 'mean_softmax_offline', 'mean_softmax_perturbed_offline'),
    *_pairs('mean_softmax_offline', 'mean_softmax_perturbed_offline'),
    *(
        Pair(f'mean_softmax_t07_steps_b{size}', f'mean_queue{k}_steps_b{size}')
        for size in (64, 128)
        for k in (1, 512, 4096)
    ),
    *_pairs('mean_queue1_steps_b64', 'mean_queue4096_steps_b64'),
    *_pairs('mean_max_steps_b64', 'mean_softmax_t07_steps_b64'),
    *_pairs('mean_selhn_steps_b64', 'mean_softmax_t07_steps_b64'),
    *_pairs('mean_softmax', 'mean_softmax_smoothed'),
    # Diao et al. 2024
    *_pairs('mean_sum_max', *(f'vsepp_{loss}_{how}' for how in ('oss', 'mss', 'oas') for loss in ('rm', 'am'))),
    *_pairs('mean_sum_max', 'vsepp_sam'),
    *_pairs('mean_max', 'vsepp_cmpm', 'vsepp_mpl', 'vsepp_rm_oss_first'),
    *_pairs('vsepp_mpl', 'vsepp_rm_mss', 'vsepp_am_mss', 'vsepp_rm_oss'),
    *(Pair(f'vsepp_{loss}s_oss', f'vsepp_{loss}m_oss') for loss in 'ra'),
    *_pairs('vsepp_dml_mutual', 'vsepp_rm_oss', 'vsepp_am_oss'),
    *_pairs('vsepp_dino_mss', 'vsepp_rm_mss', 'vsepp_am_mss'),
    *_pairs('vsepp_rm_oss3', 'vsepp_rm_oss4'),
    *_pairs('dropout_max_alone', 'dropout_rm_mss_first'),
    *_pairs('mean_max', 'dropout_max_alone_first'),
    *_pairs('mean_sum_max', 'vsepp_rs_oss', 'vsepp_as_oss', 'vsepp_dml_mutual', 'vsepp_dml_sum'),
    *_pairs('vsepp_rm_oss', 'vsepp_rm_oss_gamma_10', 'vsepp_rm_oss_gamma_30'),
    *_pairs('vsepp_am_oss', 'vsepp_am_oss_alpha_30', 'vsepp_am_oss_alpha_70'),
    *(Pair('mean_sum_max', f'vsepp_{run}') for run in ('rm_oss_gamma_10', 'rm_oss_gamma_30')),
    *(Pair('mean_sum_max', f'vsepp_{run}') for run in ('am_oss_alpha_30', 'am_oss_alpha_70')),
    *_pairs('vsepp_rm_oss', 'vsepp_soft_rm_oss', 'vsepp_rm_am_oss', 'vsepp_rm_oss3', 'vsepp_rm_oss4'),
    *_pairs('vsepp_am_oss', 'vsepp_soft_am_oss', 'vsepp_rm_am_oss', 'vsepp_am_oss3'),
    *_pairs('mean_sum_max', 'vsepp_rs_as_oss', 'vsepp_dml4'),
    *_pairs('mean_sum_max', 'vsepp_dino_mss', 'vsepp_inverse_dino_mss', 'vsepp_dino_sum', 'mean_sum_max_doubled'),
    *(Pair('mean_sum_max', f'mean_sum_max_{margin}') for margin in MARGINS),
    *(Pair(f'mean_sum_max_{margin}', f'vsepp_{loss}_oss') for margin in MARGINS for loss in ('rm', 'am')),
    *_pairs('mean_sum_max_again', *(f'vsepp_{loss}_oas' for loss in ('rm', 'am', 'dr', 'rkd'))),
    *_pairs('mean_sum_max_m40', *(f'vsepp_{loss}_oas{start}' for loss in ('rm', 'am') for start in ('', '_random'))),
    *_pairs('mean_softmax_t10', *(f'vsepp_{loss}_oas{start}' for loss in ('rm', 'am') for start in ('', '_random'))),
    *_pairs('mean_sum_max_again', 'vsepp_dr_oas_sum', 'vsepp_rkd_oas_sum'),
    *(Pair(f'vsepp_{loss}_oas_sum', f'vsepp_{boost}_oas') for loss in ('dr', 'rkd') for boost in ('rm', 'am')),
    *_pairs('mean_max', 'vsepp_dr_oas_random', 'vsepp_rkd_oas_random', 'vsepp_rm_oas_random', 'vsepp_am_oas_random'),
    *_pairs('vsepp_dr_oas_random', 'vsepp_rm_oas_random', 'vsepp_am_oas_random'),
    *_pairs('vsepp_rkd_oas_random', 'vsepp_rm_oas_random', 'vsepp_am_oas_random'),
    *(Pair(f'vsepp_{loss}_sum', f'vsepp_{boost}_oss') for loss in ('dml', 'dino') for boost in ('rm', 'am')),
    *(
        Pair(f'dropout_max_alone{suffix}', f'dropout_{loss}_mss{suffix}')
        for suffix in ('', '_first')
        for loss in ('rm', 'am')
    ),
    *(
        Pair(f'dbl_network_{loss}_alone', f'dbl_network_{boost}_mss')
        for loss in ('max', 'selhn')
        for boost in ('rm', 'am')
    ),
    *_pairs('scan_max', 'scan_rm_oss'),
    *(
        Pair(f'mean_sum_max_{anchor}{again}', f'vsepp_am_oas_{anchor}')
        for anchor in ('m10', 'half')
        for again in ('', '_again')
    ),
    # Li et al. 2023; published differences of Flickr30K
    *_pairs('mean_sum_max', 'mean_selhn'),
    *_pairs('mean_sum_max_m40', 'mean_selhn_m50'),
    *(Pair(f'{model}_max', f'{model}_selhn') for model in ('mean', 'fc', 'mlp')),
    Pair('rvse_max', 'rvse_selhn', published=14.0),
    *(Pair(f'{model}_max', f'{model}_selhn_sum') for model in ('mean', 'mlp')),
    *_pairs('mean_selhn', 'mean_selhn_sum'),
    *_pairs('mean_shn', 'mean_selhn'),
    *_pairs('mlp_max', 'rvse_max'),
    Pair('mlp_selhn', 'rvse_selhn', published=5.8),
    *_pairs('rvse_max', 'rvse_sum_max'),
    *(Pair('mean_max', f'mean_selhn_epsilon_{exponent}') for exponent in (4, 3, 1)),
    *_pairs('mean_max', 'mean_shn', 'mean_sct'),
    Pair('fc_selhn', 'rvse_selhn', published=2.5),
    *_pairs('scan_max', 'scan_selhn_sum', 'scan_selhn', 'scan_max_mean'),
    *_pairs('scan_max_mean', 'scan_selhn', 'scan_selhn_slow'),
    *_pairs('scan_selhn_sum', 'scan_selhn_clipped'),
    *_pairs('saf_max_first', 'saf_selhn_first'),
    # The same on public features
    *_pairs('public_mean_sum', 'public_mean_sum_max', 'public_mean_max', 'public_mean_selhn'),
    *_pairs('public_mean_sum_max', 'public_mean_selhn', 'public_vsepp_rm_oss', 'public_vsepp_am_oss'),
    *_pairs('public_mean_sum_max_again', 'public_vsepp_rm_oas', 'public_vsepp_am_oas'),
    *_pairs('public_mean_softmax', 'public_mean_selhn'),
    # Our questions
    *(
        Pair(f'mean_softmax{suffix}', f'mean_{loss}{suffix}')
        for suffix in ('', '_steps_b64', '_steps_b128', '_steps_b256')
        for loss in ('max', 'selhn')
    ),
    *_pairs('mean_softmax', *(f'mean_softmax_t{percent:02}' for percent in (2, 3, 7, 10, 15, 20))),
    *_pairs('mean_softmax_learned', 'mean_softmax', 'mean_softmax_t07', 'mean_softmax_t10'),
    *_pairs(
        'mean_softmax_t10',
        'mean_selhn_m50',
        'mean_sum_max_m40',
        'vsepp_rm_oss',
        'vsepp_rm_oss_first',
        'recipe_mean_selhn_oss',
    ),
    *(
        Pair(f'mean_{loss}_steps_b128', f'mean_{loss}_steps_b{size}')
        for size in (64, 256)
        for loss in ('max', 'selhn', 'softmax')
    ),
    *_pairs('mean_softmax_t07_steps_b128', 'mean_softmax_t07_steps_b64'),
    *_pairs('mean_max_steps_b256_n127', 'mean_max_steps_b256'),
    *_pairs('mean_max_steps_b128', 'mean_max_steps_b256_n127'),
    *_pairs('vsepp_rm_oss', 'recipe_mean_selhn_oss', 'vsepp_rm_oss_first'),
    *_pairs('vsepp_rm_oss_first', 'recipe_mean_selhn_oss'),
    *_pairs('mean_selhn', 'recipe_mean_selhn_oss', *(f'mean_selhn_{margin}' for margin in MARGINS)),
    *(Pair(f'mean_selhn_{margin}', 'recipe_mean_selhn_oss') for margin in MARGINS),
    *(Pair('recipe_mean_selhn_oss', f'recipe_mean_selhn_oss_{margin}') for margin in MARGINS),
)


def compare(treatment: Matrix, control: Matrix) -> dict[str, Difference]:
    """Returns the differences of rsum and R@1 of two runs, with their intervals over the images."""

    def recall_at_1(run: Matrix, way: str) -> Hits:
        found = hits([run], recalls_at=(1,))
        other = {'i2t': 't2i', 't2i': 'i2t'}[way]
        return dataclasses.replace(found, **{other: 0 * getattr(found, other)})

    return {
        'rsum': difference(hits([treatment]), hits([control])),
        **{f'{way}/recall@1': difference(recall_at_1(treatment, way), recall_at_1(control, way)) for way in WAYS},
    }


def rows_of(pair: Pair, seed: int, size: str, folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a pair and a seed; none unless the scores of both runs are saved.

    Args:
      pair: The pair.
      seed: The seed.
      size: The stem of the file of the runs' rows.
      folder: The folder of the run directories.

    Raises:
      UserError: If the scores are damaged, or of different images.
    """
    runs = [catalog.scored(catalog.directory(folder, name, seed), name) for name in (pair.treatment, pair.control)]
    if not all((run / 'config.json').exists() for run in runs):
        return []
    logs = map(read_run_log, runs)
    paths = [saved_sims(log, log.config['evaluation']['split']) for log in logs]
    if not all(path.exists() for path in paths):
        return []
    treatment, control = read_matrices(paths)
    return [
        {'size': size, 'pair': pair.name, 'seed': seed, 'metric': metric}
        | {'difference': found.rsum, 'low': found.low, 'high': found.high, 'n': len(control.sims)}
        for metric, found in compare(treatment, control).items()
    ]


def read(path: Path) -> dict[tuple, dict[str, Any]]:
    """Returns the rows of a file by their `KEYS`; none if it does not exist."""
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else ()
    return {tuple(row[key] for key in KEYS): row for row in map(json.loads, lines)}


def update(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes rows to a file, where they replace rows with the same `KEYS`; others are kept."""
    kept = read(path) | {tuple(row[key] for key in KEYS): row for row in rows}
    with replacing(path) as file:
        file.write(''.join(json.dumps(kept[key]) + '\n' for key in sorted(kept)).encode())


def differences(pair: Pair, metrics: Mapping[tuple[str, int], Mapping[str, float]], metric: str) -> dict[int, float]:
    """Returns the differences of a metric by seed, for the seeds of both experiments."""
    values = {
        name: {seed: found[metric] for (run, seed), found in metrics.items() if run == name}
        for name in (pair.treatment, pair.control)
    }
    treatment, control = values.values()
    return {seed: treatment[seed] - control[seed] for seed in sorted(treatment.keys() & control.keys())}


@functools.cache
def _critical(n: int) -> float:
    """Returns the smallest t of n differences that is significant."""
    from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / 2, n - 1))


@functools.cache
def _detectable_effect(n: int) -> float:
    """Returns the difference, in standard deviations, that the paired t-test of n differences shows with `POWER`.

    With a deviation that is s times the true one, the test statistic exceeds the critical value with a normal
    probability; s is chi with n - 1 degrees of freedom over the root of their number (Student, 1908).
    """
    from scipy import integrate, optimize, stats

    root, critical = math.sqrt(n - 1), _critical(n)

    def power(shift: float) -> float:
        def at(s: float) -> float:
            shown = stats.norm.cdf(shift - critical * s) + stats.norm.cdf(-shift - critical * s)
            return shown * root * stats.chi.pdf(root * s, n - 1)

        return integrate.quad(at, 0, math.inf)[0]

    return optimize.brentq(lambda shift: power(shift) - POWER, 0, 100) / math.sqrt(n)


def detectable(values: Sequence[float]) -> float:
    """Returns the smallest mean that as many differences of the same spread would detect; infinite for one."""
    return _detectable_effect(len(values)) * statistics.stdev(values) if len(values) > 1 else math.inf


def result(values: Sequence[float], published: float | None = None) -> str:
    """Returns the verdict of a paired t-test on differences by seed.

    Args:
      values: The differences.
      published: The difference in a paper; one below the detectable difference cannot be tested.
    """
    if len(values) < MIN_SEEDS:
        return ('one seed', 'two seeds')[len(values) - 1]
    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    if abs(mean) > _critical(len(values)) * error:
        return 'better' if mean > 0 else 'worse'
    return 'not testable here' if published is not None and published < detectable(values) else 'no difference found'


def summary(pair: Pair, values: Mapping[int, float]) -> Row:
    """Returns the line of a pair from its differences of rsum by seed."""
    found = [round(value, 9) for value in values.values()]
    return {
        'pair': pair.name,
        'seeds': ' '.join(map(str, values)),
        'mean': f'{statistics.mean(found):.1f}',
        'sd': f'{statistics.stdev(found):.1f}' if len(found) > 1 else '',
        'smallest detectable': f'{detectable(found):.1f}' if len(found) > 1 else '',
        'result': result(found, pair.published),
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    catalog.add_run_flags(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Writes the intervals of all pairs with saved scores, and yields a line for each pair with rows.

    Raises:
      UserError: If saved scores are damaged, or of different images.
    """
    size = catalog.size(args.small)
    folder, metrics = args.folder or Path('runs', size), {run: row['metrics'] for run, row in read_runs(size).items()}
    if rows := [row for pair in PAIRS for seed in args.seeds for row in rows_of(pair, seed, size, folder)]:
        update(rows, PATH)
    for pair in PAIRS:
        if values := differences(pair, metrics, 'rsum'):
            yield summary(pair, values)
