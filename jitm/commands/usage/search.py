"""Search images with a caption or an image, or captions with an image, by a trained model.

    jitm search --workdir runs/clip --images photos "a dog on the beach"
    jitm search --workdir runs/demo --split test --image test-000003 --find captions
    jitm search --workdir runs/demo --split test - < captions.txt
    jitm search --workdir runs/blip --images photos --rerank runs/blip --add "a dog on the beach"

Images are encoded once and kept in an index in the run directory; later searches encode new and
changed images only, and a stopped search resumes with the same command. For - captions are read from
standard input, one per line, and answered one by one. The scores of the run must be inner products of
vectors; --rerank orders the best results by any other run.
"""

from jitm.commands import flags as shared

REQUIRED = ('workdir',)
RULES = shared.Rules(
    alternatives=[('images', 'split')],
    needs={'top_m': 'rerank', 'add': 'rerank', 'photos': 'html', 'data_root': 'split'},
)
ARGUMENTS = '[CAPTION|-]'
FLAGS = {
    **shared.common('workdir'),
    'images': shared.path('The images: a folder of photos, or a file of features.'),
    'split': shared.text('The images: a split of the data set of the run.'),
    'image': shared.text('Search with an image instead of a caption: its name in the index, or a photo.'),
    'find': shared.choice(('images', 'captions'), 'Images or captions.', 'images'),
    'captions': shared.path('The captions to find, one per line of a file; the captions of --split if not given.'),
    'top_k': shared.count('The number of results.', 10),
    'rerank': shared.path('A run of any model that orders the best results; for a BLIP the same run.'),
    'top_m': shared.count('The number of best results that --rerank orders.', 100),
    'add': shared.switch('Order by the sum of both scores, as BLIP does, not by the score of --rerank alone.'),
    'json': shared.switch('Print the results as JSON.'),
    'html': shared.path('Also write a page of the results to this file.'),
    'photos': shared.path('Page: a folder of pictures named by the ids of --split; by default from jitm encode.'),
    'index': shared.path('The folder of the index; one in the run directory if not given.'),
    'export': shared.path('Also write the vectors as an index of FAISS to this file.'),
    'encoder': shared.path(
        'The run directory, weights or folder of a network that encoded the data of the run, if it has moved.'
    ),
    **shared.common('step', 'member', 'data_root', 'compilation_cache'),
}
