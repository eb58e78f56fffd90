"""`jitm explorer`, see `usage.explorer`."""

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.devices import parallel
from jitm.errors import require
from jitm.pages.pictures import NO_PICTURES
from jitm.serving.explorer.app import bind, in_url, serve
from jitm.serving.explorer.explored import explore
from jitm.serving.explorer.pages import Site


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
        port = bound.getsockname()[1]
        if port != values.port > 0:
            print(f'port {values.port} is taken, {port} is the next free one')
        print(f'open http://{in_url(values.host)}:{port}; Ctrl-C stops', flush=True)
        flags = ['--split', values.split, *shared.given(values, 'data_root', 'import')]
        serve(Site(runs, data, shared.repeated('explorer', values), flags, photos), values.host, bound)
