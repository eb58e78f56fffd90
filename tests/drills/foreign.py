"""Files of somebody else, with every name that jitm writes, at every path that a command writes to."""

from pathlib import Path

from tests.drills import runs

NAMES = (
    *('blocks/0123456789abcdef/0_0', 'explain/explain.json', 'explain/index.html'),  # jitm eval
    *('metrics.json', 'sims.npy', 'image_of_text.npy', 'vectors.npz', 'words.json', 'words.html', 'choices.json'),
    *('manifest.json', 'vectors.npy', 'vectors-40703a8131575e05.npy', 'parts/0.npz', 'names.json'),  # jitm search
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
FOLDERS = {  # commands that write to a folder, which follows the last flag
    'eval': (*runs.EVALUATE[:-1], FOLDER),
    'eval with everything': (*runs.EVALUATE[:-2], '--save_sims', '--save_vectors', '--output', FOLDER),
    'words': ('words', '--workdir', 'run', '--perturbations', 'noun', '--output', FOLDER),
    'audit': ('audit', '--workdir', 'run', '--output', FOLDER),
    'choices': ('choices', '--workdir', 'run', '--output', FOLDER),
    'search': (*runs.SEARCH, '--index', FOLDER),
    'mine': ('mine', '--workdir', 'run', '--top_h_texts=3', '--top_h_images=3', '--out', FOLDER),
    'train': ('train', '--config', 'config.py', '--workdir', FOLDER),
    'average': ('average', 'run', 'run', '--out', FOLDER),
    'convert --to': ('convert', '--to', 'safetensors', 'run', '--out', FOLDER),
    'convert --from': ('convert', '--from', 'scan', 'run', '--out', FOLDER),
    'sweep': ('sweep', '--config', 'config.py', '--workdir', 'swept', '--sweep', 'terms.ranking.margin=0.1,0.2'),
}
FILES = {  # commands that write a file, after the last flag
    'search --html': (*runs.SEARCH, '--html', f'{FOLDER}/page.html'),
    'search --export': (*runs.SEARCH, '--export', f'{FOLDER}/graph.stablehlo'),
    'report': ('report', 'run', '--output', f'{FOLDER}/report.html'),
    'report --rows': ('report', 'run', '--output', 'new.html', '--rows', f'{FOLDER}/results.jsonl'),
    'report training': ('report', 'training', 'run', '--output', f'{FOLDER}/training.png'),
    'report validation': ('report', 'validation', 'run', '--output', f'{FOLDER}/training.png'),
    'report panels': ('report', 'panels', 'evaluated/sims.npy', '--output', f'{FOLDER}/panels.md'),
}
READ = {  # commands that read a folder or a file, of which they can make nothing
    'train --config': ('train', '--config', f'{FOLDER}/config.json', '--workdir', 'new'),
    'sweep --config': ('sweep', '--config', f'{FOLDER}/config.json', '--sweep', 'seed=0,1', '--workdir', 'new'),
    'convert --config': ('convert', '--from', 'clip', 'run', '--out', 'new', '--config', f'{FOLDER}/config.json'),
    'encode --config': ('encode', '--config', f'{FOLDER}/config.json', '--out', 'new'),
    'encode --workdir': ('encode', '--workdir', FOLDER, '--out', 'new'),
    'encode --images': ('encode', '--config', 'config.py', '--images', FOLDER, '--out', 'new'),
    'encode --out': ('encode', '--config', 'config.py', '--out', FOLDER),
    'encode --text_encoder': ('encode', '--config', 'config.py', '--out', 'new', '--text_encoder', FOLDER),
    'encode --data_root': ('encode', '--config', 'config.py', '--out', 'new', '--data_root', FOLDER),
    'eval --workdir': ('eval', '--workdir', FOLDER),
    'eval --data_root': ('eval', '--workdir', 'run', '--data_root', FOLDER),
    'eval --photos': ('eval', '--workdir', 'run', '--explain', '1', '--photos', f'{FOLDER}/config.json'),
    'eval --encoder': ('eval', '--workdir', 'run', '--explain', '1', '--encoder', FOLDER),
    'eval --shortlist': ('eval', '--workdir', 'run', '--top_m', '10', '--shortlist', FOLDER),
    'explorer --workdir': ('explorer', '--workdir', FOLDER),
    'explorer --photos': ('explorer', '--workdir', 'run', '--photos', f'{FOLDER}/config.json'),
    'explorer --encoder': ('explorer', '--workdir', 'run', '--encoder', FOLDER),
    'explorer --data_root': ('explorer', '--workdir', 'run', '--data_root', FOLDER),
    'mine --workdir': ('mine', '--workdir', FOLDER, '--out', 'new'),
    'mine --data_root': ('mine', '--workdir', 'run', '--out', 'new', '--data_root', FOLDER),
    'audit --workdir': ('audit', '--workdir', FOLDER),
    'audit --photos': ('audit', '--workdir', 'run', '--photos', f'{FOLDER}/config.json'),
    'audit --data_root': ('audit', '--workdir', 'run', '--data_root', FOLDER),
    'choices --workdir': ('choices', '--workdir', FOLDER),
    'choices --photos': ('choices', '--workdir', 'run', '--photos', f'{FOLDER}/config.json'),
    'choices --encoder': ('choices', '--workdir', 'run', '--encoder', FOLDER),
    'choices --data_root': ('choices', '--workdir', 'run', '--data_root', FOLDER),
    'choices FILE': ('choices', '--workdir', 'run', f'{FOLDER}/config.json'),
    'words --workdir': ('words', '--workdir', FOLDER),
    'words --data_root': ('words', '--workdir', 'run', '--data_root', FOLDER),
    'words --generator': ('words', '--workdir', 'run', '--perturbations', 'generated', '--generator', FOLDER),
    'words --concreteness': ('words', '--workdir', 'run', '--perturbations', 'noun', '--concreteness', FOLDER),
    'words --scene_graphs': ('words', '--workdir', 'run', '--perturbations', 'noun', '--scene_graphs', FOLDER),
    'report RUN': ('report', FOLDER, '--output', 'new.html'),
    'report --photos': ('report', 'run', '--output', 'new.html', '--photos', f'{FOLDER}/config.json'),
    'report --data_root': ('report', 'panels', 'evaluated/sims.npy', '--output', 'new.md', '--data_root', FOLDER),
    'search --workdir': ('search', '--workdir', FOLDER, '--split', 'dev', 'a dog'),
    'search --images': ('search', '--workdir', 'run', '--images', FOLDER, 'a dog'),
    'search --image': (*runs.SEARCH[:-1], '--index', FOLDER, '--image', f'{FOLDER}/config.json'),
    'search --captions': ('search', '--workdir', 'run', '--captions', FOLDER, '--image', 'x'),
    'search --rerank': (*runs.SEARCH, '--rerank', FOLDER),
    'search --photos': (*runs.SEARCH, '--html', 'new.html', '--photos', f'{FOLDER}/config.json'),
    'search --encoder': (*runs.SEARCH, '--encoder', FOLDER),
    'search --data_root': (*runs.SEARCH, '--data_root', FOLDER),
    'convert --vocabulary': ('convert', '--from', 'scan', 'run', '--out', 'new', '--vocabulary', FOLDER),
    'average RUN': ('average', 'run', FOLDER, '--out', 'new'),
    'average --data_root': ('average', 'run', 'run', '--greedy', '--out', 'new', '--data_root', FOLDER),
    'sweep --workdir': ('sweep', '--config', 'config.py', '--sweep', 'seed=0,1', '--workdir', f'{FOLDER}/config.json'),
}


def write(folder: Path) -> None:
    """Writes the files."""
    for name in NAMES:
        path = folder / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('mine\n')
    swept = folder / 'swept' / 'terms.ranking.margin=0.2_seed=0'
    swept.mkdir(parents=True)
    (swept / 'notes.txt').write_text('mine\n')
