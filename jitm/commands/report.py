"""Reports from the logs, similarities and vectors of runs, never from a model.

python -m jitm.analysis summary runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1
python -m jitm.analysis training runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1 --output training.png
python -m jitm.analysis validation runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1 --output validation.png
python -m jitm.analysis difficulty runs/tags_s0 runs/tags_sg_s0 --output difficulty.png
python -m jitm.analysis cross_retrieval runs/{vse0,vsepp}_s0/eval/dev/sims.npy --output cross_retrieval.png
python -m jitm.analysis panels runs/{vse0,vsepp}_s0/eval/dev/sims.npy --queries 4 --output panels.md
python -m jitm.analysis distributions runs/{vse0,vsepp}_s0/eval/dev/sims.npy --output distributions.png
python -m jitm.analysis map runs/{vse0,vsepp}_s0/eval/dev/vectors.npz --pairs 30 --output map.png
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jitm.analysis import cross_retrieval, difficulty, distributions, feature_map, panels, training, validation
from jitm.analysis.matrices import read_matrices
from jitm.analysis.settings import read_settings
from jitm.analysis.summary import summary
from jitm.errors import EXIT_USER_ERROR, UserError

FIGURES = {
    'training': (training.training, training.draw),
    'validation': (validation.validation, validation.draw),
    'difficulty': (difficulty.difficulty, difficulty.draw),
    'cross_retrieval': (cross_retrieval.cross_retrieval, cross_retrieval.draw),
    'distributions': (distributions.summarize, distributions.draw),
}


def make_parser() -> argparse.ArgumentParser:
    """The command line: a report, what it reads and where it writes."""
    parser = argparse.ArgumentParser(prog='python -m jitm.analysis', description=__doc__.splitlines()[0])
    reports = parser.add_subparsers(dest='report', required=True)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument(
        'workdirs', nargs='+', type=Path, help='run directories; those that differ only in the seed are one'
    )
    sims = argparse.ArgumentParser(add_help=False)
    sims.add_argument('sims', nargs='+', type=Path, help='files that eval.py --save_sims wrote, of the same split')
    vectors = argparse.ArgumentParser(add_help=False)
    vectors.add_argument(
        'vectors', nargs='+', type=Path, help='files that eval.py --save_vectors wrote, of the same split'
    )

    def add(name: str, parent: argparse.ArgumentParser, explanation: str, output: str = '') -> argparse.ArgumentParser:
        report = reports.add_parser(name, parents=[parent], help=explanation)
        if output:
            report.add_argument('--output', type=Path, default=Path(output), help=f'the file it writes ({output})')
        return report

    add('summary', runs, 'best validation and rsum by epoch, averaged over seeds')
    add('training', runs, 'loss, gradient and gap of scores during training', 'training.png')
    add('validation', runs, 'R@1 of both directions and rsum by epoch', 'validation.png')
    add('difficulty', runs, 'how close sentences that a model writes itself come to true ones', 'difficulty.png')
    add('cross_retrieval', sims, 'how far positive pairs come in the worse of both directions', 'cross_retrieval.png')
    add('distributions', sims, 'how similar positive and negative pairs are', 'distributions.png')
    points = add('map', vectors, 'some images and their texts as points of a plane', 'map.png')
    points.add_argument('--method', choices=feature_map.METHODS, default='tsne', help='how they are placed (tsne)')
    points.add_argument('--pairs', type=int, default=30, help='how many images with their texts, spread evenly (30)')
    queries = add('panels', sims, 'what is retrieved for some images and texts, side by side', 'panels.md')
    queries.add_argument('--queries', type=int, default=4, help='how many images and texts, spread evenly (4)')
    queries.add_argument('--images', type=int, nargs='+', help='indices of the images instead')
    queries.add_argument('--texts', type=int, nargs='+', help='indices of the texts instead')
    queries.add_argument('--data_root', help='the data folder, if it has moved since training')
    return parser


def report(args: argparse.Namespace) -> None:
    """Prints a report or writes it to its file, and draws its figure."""
    if args.report == 'map':
        feature_map.draw(feature_map.read_vectors(args.vectors), args.method, args.pairs, args.output)
        print(f'written to {args.output}')
        return
    source = read_matrices(args.sims) if 'sims' in args else read_settings(args.workdirs)
    if args.report == 'summary':
        print(summary(source))
        return
    if args.report == 'panels':
        split = panels.read_split(source, args.data_root)
        images = panels.spread(args.queries, split.num_images) if args.images is None else args.images
        texts = panels.spread(args.queries, split.num_texts) if args.texts is None else args.texts
        panels.write(source, split, images, texts, args.output)
    else:
        tell, draw = FIGURES[args.report]
        print(tell(source), end='\n\n')
        draw(source, args.output)
    print(f'written to {args.output}')


def main(argv: Sequence[str]) -> int:
    """Makes a report; returns the exit code."""
    try:
        report(make_parser().parse_args(argv))
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
