"""Files of somebody else, with every name that jitm writes, at every path that a command writes to."""

import shlex
from pathlib import Path

from tests.drills import runs

NAMES = (
    *('unfinished/0123456789abcdef/0_0', 'explain/explain.json', 'explain/index.html'),  # jitm eval
    *('metrics.json', 'sims.npy', 'image_of_text.npy', 'vectors.npz', 'words.json', 'words.html', 'choices.json'),
    *('manifest.json', 'vectors.npy', 'vectors-40703a8131575e05.npy', 'names.json'),  # jitm search
    *('unfinished/0123456789abcdef/0', 'unfinished/0'),
    *('state_0.npz', 'texts_of_image.npy', 'images_of_text.npy', 'found_0.npz'),  # jitm mine
    *('config.json', 'metrics.jsonl', 'timing.jsonl', 'checkpoints/1/manifest', 'damaged/1', 'model.safetensors'),
    *('encoded.json', 'dev_ims.npy', 'dev_caps.txt', 'dev_ids.txt', 'boxes.npy', 'README.md', 'vocabulary.json'),
    *(
        'report.html',
        'training.png',
        'panels.md',
        'panels_images/0.png',
        'results.jsonl',
        'page.html',
        'graph.stablehlo',
    ),
    *('graph.stablehlo', '.lock', '.hidden', 'notes.txt.partial', '.notes.txt.jitm_partial', 'stage1/config.json'),
)
FOLDER = 'somebody'


def listed(kind: str) -> dict[str, tuple[str, ...]]:
    """Returns the commands of a kind by their names."""
    return {name: tuple(shlex.split(line)) for name, line in runs.LISTED[kind].items()}


FOLDERS = listed('folders')  # commands that write to a folder, which follows the last flag
FILES = listed('files')  # that write a file, which follows the last flag
READ = listed('read')  # that read a folder or a file, of which they can make nothing


def write(folder: Path) -> None:
    """Writes the files."""
    for name in NAMES:
        path = folder / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('mine\n')
    swept = folder / 'swept' / 'terms.ranking.margin=0.2_seed=0'
    swept.mkdir(parents=True)
    (swept / 'notes.txt').write_text('mine\n')
