"""Encode photos once: write the features of an image network, which models of features train on.

    jitm encode --workdir runs/vsepp --out data/mine_precomp
    jitm encode --config vsepp:vsepp,f30k,vgg19 --out data/mine_precomp --crops 10
    jitm encode --workdir runs/vsepp --images photos --out data/holiday
    jitm encode --workdir runs/clip_b32 --texts --out data/mine_tokens
    jitm encode --config vsepp:vsepp,f30k,vgg19 --text_encoder all-MiniLM-L6-v2 --out data/mine_tokens

The network comes from a trained run, or from a config with its initial weights, see config key initialize.image. The
images are splits of its data set, or a folder of photos without captions. The output has the layout of data.source
precomp.load: one vector for each image, or the cells of the last map as regions. A CLIP has cells, before the
projection: the patches of a vision transformer after the last normalization, or the last map of a residual network.
Vectors of its joint space: `jitm eval --save_vectors`. With --texts, a CLIP, SigLIP or text.BERTEncoder also writes the
last states of the tokens of all captions, which heads with the text encoder text.TokenEncoder read; with
--text_encoder, a folder of Hugging Face does, such as a MiniLM.
A stopped job resumes with the split that it has not finished. All splits of a folder have the features of one network.
"""

from jitm.commands import flags as shared

REQUIRED = ('out',)
RULES = shared.Rules(
    alternatives=[('config', 'workdir')],
    needs={'step': 'workdir', 'texts': 'workdir'},
    excludes={'images': ('split', 'data_root', 'texts', 'text_encoder'), 'texts': ('text_encoder',)},
)
FLAGS = {
    **shared.common('config'),
    'out': shared.path('The output folder.'),
    'images': shared.path('A folder of photos without captions.'),
    'split': shared.texts('A split to encode; repeat the flag.', ['train', 'dev']),
    'texts': shared.switch('Also encode the tokens of the captions, by the text encoder of --workdir.'),
    'text_encoder': shared.path(
        'Also encode them by this text encoder: a folder of Hugging Face or sentence-transformers, or the name of an '
        'installed one, such as all-MiniLM-L6-v2.'
    ),
    'crops': shared.number('1 for the centre of each photo, 10 for ten crops.', 1),
    'dtype': shared.choice(('float32', 'float16'), 'The dtype of the features.', 'float32'),
    **shared.common('workdir', 'step', 'member', 'data_root', 'precision', 'compilation_cache'),
}
