"""Explore the results of runs on a local page: queries, captions, attention, mismatched words and hard negatives.

    jitm explorer --workdir runs/scan --split test
    jitm explorer --workdir runs/a --workdir runs/b --split dev --photos photos

Two runs are shown side by side. The page is served to this machine only unless --host says otherwise;
it has no password.
"""

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.devices import parallel
from jitm.errors import require
from jitm.pages.pictures import NO_PICTURES
from jitm.serving.explorer.app import bind, in_url, serve
from jitm.serving.explorer.explored import explore
from jitm.serving.explorer.pages import Site

REQUIRED = ('workdir',)
FLAGS = {
    'workdir': shared.paths('A run directory; repeat the flag to compare runs side by side.'),
    **shared.common('split'),
    'photos': shared.path('A folder of pictures named by the image ids; by default from jitm encode.'),
    'encoder': shared.path('The run directory, weights or folder of a network that encoded the data, if it has moved.'),
    'host': shared.text('The address to bind to; 0.0.0.0 for all machines.', '127.0.0.1'),
    'port': shared.number('The port; 0 for one that is free.', 8765, lower_bound=0, upper_bound=65535),
    **shared.common('data_root', 'compilation_cache'),
}


def main(values: flags.FlagValues) -> None:
    """Encodes the split, and serves the page until it is stopped."""
    for module in ('starlette', 'uvicorn', 'jinja2', 'matplotlib'):
        require(module, extra='explorer')
    parallel.use_all_cores()
    with bind(values.host, values.port) as bound:
        shared.photos_folder(values)  # is checked before images are encoded
        runs, data = explore(values.workdir, values.split, values.data_root, values.encoder)
        photos = loading.photos_of(values, data, runs[0].run.run)
        print(f'{data.name}: {len(data.image_ids):,} images, {len(data.captions):,} captions')
        if photos is None and data.pixels is None:
            print(NO_PICTURES)
        print(f'open http://{in_url(values.host)}:{bound.getsockname()[1]}; Ctrl-C stops', flush=True)
        flags = ['--split', values.split, *shared.given(values, 'data_root', 'import')]
        serve(Site(runs, data, shared.repeated('explorer', values), flags, photos), values.host, bound)
