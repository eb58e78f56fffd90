"""Convert published weights to a run directory, which every command reads, or a run to a folder to publish.

    jitm convert --from clip models/clip-vit-base-patch32 --out runs/clip_b32
    jitm convert --from clip models/ViT-B-32.pt --vocabulary bpe_simple_vocab_16e6.txt.gz --out runs/clip_b32
    jitm convert --from siglip models/siglip-base-patch16-224 --out runs/siglip_b16
    jitm convert --from blip models/blip-itm-base-coco --out runs/blip_base
    jitm convert --from scan model_best.pth.tar --vocabulary f30k_precomp_vocab.json --out runs/scan_published
    jitm convert --to safetensors runs/scan --out exported/scan
    jitm convert --to tfds data/f30k_precomp --out data/tfds

With `--from`, the argument is the folder of the published files, or the file of weights in it. The weights determine
the model; `--config`, by default a preset of the system, determines data, losses and evaluation.
Model options found neither in the tensors nor in the stored options of the training script are taken from the config
and printed.

With `--to`, the argument is a run directory, whose best model is written. `--to safetensors` writes
`model.safetensors`, `config.json`, `vocabulary.json` and a model card with the latest evaluation, which every command
accepts as `--workdir`. `--to clip_transformers` writes a CLIP as a folder of transformers, which `--from` reads, too.

Low-rank adapters of a run are merged with its weights.

`--to tfds` converts a `*_precomp` folder instead of a run to a TensorFlow data set for data.source
tfds.load.
"""

from jitm.commands import flags as shared

ARGUMENTS = 'PATH'
REQUIRED = ('out',)
RULES = shared.Rules(alternatives=[('from', 'to')], excludes={'to': ('config', 'vocabulary')})
SYSTEMS = (  # the keys of `jitm.commands.convert.LOADERS`, which imports jax
    *('clip', 'siglip', 'blip'),
    *('vsepp', 'scan', 'bfan', 'imram', 'sgraf', 'dbl', 'naaf', 'vsrn', 'vse_infinity', 'esa', 'rvsepp'),
    *('uniter', 'tags_dc', 'oscar'),
)
TARGETS = ('safetensors', 'clip_transformers', 'tfds')  # our names, those of transformers, or data
FLAGS = {
    **shared.common('config'),
    'from': shared.text(f'The system: {", ".join(SYSTEMS)}.'),
    'to': shared.text(f'The names or the format to write with: {", ".join(TARGETS)}.'),
    'out': shared.path('The run directory to make, or the folder with `--to`.'),
    'vocabulary': shared.path('The published vocabulary; the one beside the weights if not given.'),
    **shared.common('compilation_cache'),
}
