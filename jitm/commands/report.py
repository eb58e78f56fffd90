"""Report on saved logs, similarities and vectors of runs: tables and figures.

    jitm report summary runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1
    jitm report training runs/vsepp_s0 runs/vsepp_s1 --output training.png
    jitm report panels runs/vse0_s0/eval/dev/sims.npy runs/vsepp_s0/eval/dev/sims.npy --queries 4
    jitm report map runs/vsepp_s0/eval/dev/vectors.npz --pairs 30

The kinds, with what they read:

    summary RUN...              best validation, and rsum by epoch, averaged over seeds
    training RUN...             loss, gradient and margin between scores during training
    validation RUN...           R@1 of both directions and rsum by epoch
    difficulty RUN...           how close synthetic negative captions come to the captions
    cross_retrieval SIMS...     how far positive pairs rank in the worse of both directions
    distributions SIMS...       distributions of the similarities of positive and negative pairs
    panels SIMS...              what is retrieved for some images and captions, side by side
    map VECTORS...              images and their captions as points of a plane

RUN is a run directory; runs that differ only in the seed are averaged. SIMS is a file of `jitm eval
--save_sims`, VECTORS one of `jitm eval --save_vectors`; several files must be of the same split.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from jitm.analysis import cross_retrieval, difficulty, distributions, feature_map, panels, training, validation
from jitm.analysis.matrices import read_matrices
from jitm.analysis.retrieval import evenly_spaced
from jitm.analysis.settings import read_settings
from jitm.analysis.summary import summary
from jitm.commands import flags as shared
from jitm.errors import UserError, did_you_mean

ARGUMENTS = 'KIND FILE...'

# Kind -> how its figure is described and drawn, and what reads its files.
FIGURES = {
    'training': (training.training, training.draw, read_settings),
    'validation': (validation.validation, validation.draw, read_settings),
    'difficulty': (difficulty.difficulty, difficulty.draw, read_settings),
    'cross_retrieval': (cross_retrieval.cross_retrieval, cross_retrieval.draw, read_matrices),
    'distributions': (distributions.summarize, distributions.draw, read_matrices),
}

# Kind -> the flags that it reads.
FLAGS = {
    'summary': (),
    **dict.fromkeys(FIGURES, ('output',)),
    'panels': ('output', 'queries', 'images', 'texts', 'data_root'),
    'map': ('output', 'method', 'pairs'),
}


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_string('output', None, 'The output file; KIND.png or panels.md if not given.', flag_values=values)
    flags.DEFINE_enum('method', 'tsne', feature_map.METHODS, 'Map: how the points are projected.', flag_values=values)
    flags.DEFINE_integer('pairs', 30, 'Map: images shown with their captions, evenly spaced.', flag_values=values)
    flags.DEFINE_integer(
        'queries', 4, 'Panels: queries of each direction, evenly spaced.', lower_bound=0, flag_values=values
    )
    flags.DEFINE_list('images', None, 'Panels: indices of the query images, such as 3,17.', flag_values=values)
    flags.DEFINE_list('texts', None, 'Panels: indices of the query captions, such as 3,17.', flag_values=values)
    shared.define(values, 'data_root')


def _check(kind: str, values: flags.FlagValues) -> None:
    """Raises a UserError for an unknown kind, or a flag that the kind does not read."""
    if kind not in FLAGS:
        raise UserError(f"'{kind}' is not a kind of report{did_you_mean(kind, FLAGS)}")
    for name in values:
        if values[name].present and name not in FLAGS[kind]:
            raise UserError(f'jitm report {kind} does not read --{name}; leave it out')


def _indices(flag: flags.Flag) -> list[int] | None:
    try:
        return None if flag.value is None else [int(word) for word in flag.value]
    except ValueError:
        raise UserError(f'--{flag.name} is {",".join(flag.value)}; give indices such as 3,17') from None


def _write_panels(files: Sequence[Path], output: Path, values: flags.FlagValues) -> None:
    matrices = read_matrices(files)
    split = panels.read_split(matrices, values.data_root)
    images, texts = _indices(values['images']), _indices(values['texts'])
    images = evenly_spaced(values.queries, split.num_images) if images is None else images
    texts = evenly_spaced(values.queries, split.num_texts) if texts is None else texts
    panels.write(matrices, split, images, texts, output)


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints a report, or writes it to its file and draws its figure."""
    if not words:
        raise UserError(f'the kind of report is missing; give one of {", ".join(FLAGS)}')
    kind, *files = words
    _check(kind, values)
    if not files:
        raise UserError(f'jitm report {kind} needs at least one file; jitm report --help says which')
    files = [Path(file) for file in files]
    output = Path(values.output or (f'{kind}.md' if kind == 'panels' else f'{kind}.png'))
    if kind == 'summary':
        print(summary(read_settings(files)))
        return
    if kind == 'map':
        feature_map.draw(feature_map.read_vectors(files), values.method, values.pairs, output)
    elif kind == 'panels':
        _write_panels(files, output, values)
    else:
        describe, draw, read = FIGURES[kind]
        source = read(files)
        print(describe(source), end='\n\n')
        draw(source, output)
    print(f'written to {output}')
