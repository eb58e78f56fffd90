"""`jitm search`, see `usage.search`."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tqdm
from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.data.precomp import read_lines
from jitm.data.splits import Split
from jitm.errors import UserError, printable, require
from jitm.files.outputs import MARK, check_own, replacing_own
from jitm.pages.render import format_score
from jitm.runs.interrupt import interruptible
from jitm.runs.run import load_run, read_split
from jitm.serving.answers import Answer, answer, check_image, page
from jitm.serving.images import check_readable, open_images, photo_files
from jitm.serving.index import Index
from jitm.serving.loaded_run import LoadedRun

STANDARD_INPUT = '-'
SHOWN = 10  # printed names of images that cannot be read, at most
NEIGHBOURS = 32  # per vector of a graph of FAISS (HNSW: Malkov and Yashunin, 2020)
BLOCK = 2**16  # vectors that are added to a graph at a time


def _check(values: flags.FlagValues, caption: str) -> None:
    """Raises a UserError for flags that do not fit together."""
    if bool(caption.strip()) == bool(values.image) and not (values.export and not caption and not values.image):
        raise UserError('give what to search with: either a caption or --image')
    if caption == STANDARD_INPUT and values.html:
        raise UserError('--html writes the page of one caption; leave it out, or give the caption instead of -')
    if values.captions and values.find == 'images':
        raise UserError('--captions is read with --find captions only; add it, or leave --captions out')
    if values.find == 'captions' and not (values.captions or values.split):
        raise UserError('--find captions needs --captions or --split')
    if values.find == 'captions' and caption:
        raise UserError('--find captions needs --image instead of a caption: captions are compared with images only')
    if values.rerank and (values.find == 'images') == bool(values.image):
        raise UserError('--rerank compares images with captions only; leave it out')
    query = caption or values.image
    shared.check_read(values, 'a caption or --image', query, 'find', 'captions', 'top_k', 'rerank', 'json', 'html')
    if values.rerank and values.top_m < values.top_k:
        problem = f'--top_m is {values.top_m}, fewer than the {values.top_k} results of --top_k'
        raise UserError(f'{problem}: order at least as many as are shown')
    if values.export:
        check_own(Path(values.export))
        require('faiss', extra='export')
    if values.html:
        require('jinja2', extra='report')
        check_own(Path(values.html))


def _index(run: LoadedRun, images: Split, values: flags.FlagValues) -> Index:
    """Makes or updates the index with a progress bar, and names the images that are left out on stderr."""
    bar = tqdm.tqdm(unit=' images', disable=None, dynamic_ncols=True, leave=False)

    def report(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    folder = Path(values['index'].value) if values['index'].value else run.index_folder(values.images or images)
    with interruptible(folder), bar:
        index = run.index(images, folder, report)
    problems = [printable(f'{name} {problem}') for name, problem in index.unreadable.items()]
    if problems:
        hidden = f'\n... and {len(problems) - SHOWN} more, see {index.folder}' if len(problems) > SHOWN else ''
        print(f'left out of {len(images)} images:\n' + '\n'.join(problems[:SHOWN]) + hidden, file=sys.stderr)
    return index


def _export(index: Index, path: Path) -> None:
    """Writes an HNSW graph of inner products that `faiss.read_index` reads; its ids are the rows of the index."""
    import faiss

    graph = faiss.IndexHNSWFlat(index.vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(index), BLOCK):
        graph.add(index.vectors[start : start + BLOCK])
    with replacing_own(path) as file:
        file.write(faiss.serialize_index(graph))
        file.write(MARK)  # FAISS reads as far as the graph
    print(f'{len(index):,} vectors written to {path}', file=sys.stderr)


def _text(result: Answer) -> str:
    """Returns the results for a terminal."""
    width = len(str(len(result.results)))
    return '\n'.join(
        f'{n:{width}}  {format_score(hit.score):>8}  {printable(hit.text)}' for n, hit in enumerate(result.results, 1)
    )


def _read_captions() -> Iterator[tuple[int, str]]:
    """Yields the lines of standard input that are not blank, with their numbers, each as soon as it is complete."""
    if sys.stdin.isatty():
        print('type a caption per line; Ctrl-D ends', file=sys.stderr)
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            caption = line.decode().strip()
        except UnicodeDecodeError:
            raise UserError(f'line {number} of standard input is not UTF-8; convert it') from None
        if caption:
            yield number, caption


def _as_json(result: Answer, index: Index) -> Mapping[str, Any]:
    return {
        'query': result.query,
        'index': str(index.folder),
        'images': len(index),
        'results': [{'rank': n, 'name': hit.text, 'score': hit.score} for n, hit in enumerate(result.results, 1)],
        'unreadable': index.unreadable,
    }


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints the results."""
    caption = ' '.join(words)
    _check(values, caption)

    # The run, the images and, with --find captions, the captions.
    run = LoadedRun(loading.load_run(values), values.encoder)
    run.check_vectors()
    second = LoadedRun(load_run(values.rerank).reranker) if values.rerank else None
    photos = shared.photos_folder(values)
    images = read_split([run.run], values.split, values.data_root) if values.split else values.images
    images = open_images(images, run.run)
    if values.html and values.split:
        photos = loading.photos_of(values, images, run.run)
    are_photos = bool(photo_files(images, run.run))
    encodes = 'pixels' not in run.run.model.reads and (are_photos or values.image)
    encodes = encodes or run.run.model.text_format.vectors
    shared.check_read(values, 'photos for a run on features', encodes, 'encoder')
    if values.encoder:
        run.restore_networks()
    if photos and are_photos:
        raise UserError('--photos is for images of features, but these are photos; leave it out')
    if second is not None:
        check_readable(images, second.run)
    captions = None
    if values.find == 'captions':
        captions = read_lines(values.captions) if values.captions else images.captions

    if values.image:
        check_image(values.image, images.names)
    index = _index(run, images, values)
    if values.export:
        _export(index, Path(values.export))
    if not caption and not values.image:
        return

    # The results.
    reranking = {'rerank': second, 'top_m': values.top_m, 'add': values['add'].value}

    def find(caption: str) -> Answer:
        query = {'caption': caption, 'image': values.image, 'captions': captions}
        result = answer(run, index, images, values.top_k, **query, **reranking)
        for model in filter(None, (run, second)):
            unknown = model.describe_unknown_words(caption)
            if unknown:
                print(printable(unknown), file=sys.stderr)
        return result

    if caption == STANDARD_INPUT:
        with contextlib.suppress(KeyboardInterrupt):
            for number, line in _read_captions():
                try:
                    answered = find(line)
                except UserError as error:
                    raise UserError(f'line {number} of standard input: {error}') from None
                lines = f'{answered.query}\n{_text(answered)}\n'
                print(json.dumps(_as_json(answered, index)) if values.json else lines, flush=True)
        return
    answered = find(caption)
    print(json.dumps(_as_json(answered, index), indent=2) if values.json else _text(answered))
    if values.html:
        command = shared.repeated('search', values, words)
        with replacing_own(Path(values.html)) as file:
            file.write(page(answered, images, command, photos).encode())
        print(f'written to {values.html}', file=sys.stderr)
