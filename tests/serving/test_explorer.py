"""The explorer: what its pages show, in a real browser where one is installed, and what it refuses to serve."""

import contextlib
import dataclasses
import http.client
import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import jax
import numpy as np
import pytest
from PIL import Image

from jitm.commands import cli
from jitm.data.scenes import load
from jitm.data.splits import take_images
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.layers.text import GRUEncoder
from jitm.pages.pictures import pixels_of
from jitm.runs.run import Run, load_run
from jitm.serving.explorer import app, explored, pages
from jitm.serving.explorer.explored import DOUBTFUL, MAX_CHARACTERS, Explored, explore
from jitm.serving.explorer.pages import Site
from jitm.serving.loaded_run import LoadedRun
from jitm.types import Texts
from tests.support.html import Page
from tests.support.matchers import DIM, make_scan
from tests.support.search import DATA, names_of, search

HTML = '<script>document.title="broken"</script><b>a red ring</b>'
CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), 'chromium')
WORDS = {
    'words': ['<start>', 'red', '<b>', '<end>'],
    'mismatch': [0, 0.1, 0.9, 0],
    'corrections': ['', 'red', 'ring', ''],
}


@pytest.fixture(scope='module')
def site(finished):
    """Two runs side by side."""
    runs, data = explore([finished, finished], 'test')
    return Site(runs, data, 'jitm explorer', ['--split', 'test'])


@pytest.fixture(scope='module')
def scan():
    """A site of an untrained cross-attention model."""
    split = load('test', **DATA)
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    model = make_scan('t2i', 'Mean', text=GRUEncoder(len(vocabulary), DIM, 5, bidirectional=True, dropout=0.0))
    images = take_images(split, np.array([0]))
    texts = Texts(np.ones((1, 3), np.int32), np.array([3]))
    variables = jax.jit(model.init)(jax.random.key(0), images, texts)
    config = {'data': {}, 'evaluation': {'dtype': 'float32', 'precision': 'highest'}, 'run': {'memory_mb': 1024}}
    run = Run('a_run', 7, 'target', model, variables, vocabulary, config, split.regions.shape[2], 'hash')
    return Site([Explored(LoadedRun(run), split)], split, 'jitm explorer', ['--split', 'test'])


def in_order(page):
    """Returns the names of the images of a page."""
    return [text for text in Page(page).texts['code'] if not text.startswith('jitm ')]


def test_a_query_shows_images_in_the_order_of_the_command(site, finished, capsys):
    caption = site.data.captions[7]
    found = names_of(search(capsys, '--workdir', finished, '--split', 'test', caption, '--json'))
    page = site.home(caption)
    assert in_order(page) == 2 * found
    parsed = Page(page)
    assert parsed.texts['h2'] == [str(finished)] * 2
    links = [address for address in parsed.addresses if address.startswith('image?')]
    assert links[0] == f'image?{urlencode({"row": site.data.image_ids.index(found[0]), "q": caption})}'
    assert page.count('<article class="right">') == 2  # its own image, once for each run
    assert len([address for address in parsed.addresses if address.startswith('data:image/png')]) == 20


def test_the_right_image_is_shown_where_it_was_missed(site, monkeypatch):
    monkeypatch.setattr(pages, 'IMAGES', 2)
    data = site.data
    for text, caption in enumerate(data.captions):
        found = [hit.index for hit in site.runs[0].rank_images(caption)]
        rank = found.index(data.image_of_text[text]) + 1
        if rank > 2 and data.captions.count(caption) == 1:
            break
    page = site.home(caption)
    assert len(in_order(page)) == 2 * 3
    _, *right = page.split('<article class="right">')
    assert len(right) == 2
    name = data.image_ids[data.image_of_text[text]]
    assert all(f'<span class="rank">{rank}</span>' in part and f'>{name}</code>' in part for part in right)


@pytest.mark.slow
def test_results_have_the_command_that_repeats_them(site, scan, finished):
    def command_of(page):
        return next(text for text in Page(page).texts['code'] if text.startswith('jitm '))

    search = f'jitm search --workdir {finished} --split test --top_k'
    caption = "a ring's edge"
    assert command_of(site.home(caption)) == f'{search} 12 {shlex.quote(caption)}'
    assert command_of(site.home('-5 rings')) == f"{search} 12 -- '-5 rings'"
    command = command_of(site.image(3, ''))
    assert command == f'{search} 20 --image {site.data.image_ids[3]} --find captions'
    assert cli.main(shlex.split(command)[1:]) == 0
    assert command_of(site.pair(7)) == f'{search} 7 {shlex.quote(site.data.captions[7])}'
    assert Page(scan.image(3, '')).texts['code'] == ['jitm explorer']  # it has no index to search


FORM = (
    b'--xyz\r\nContent-Disposition: form-data; name="photo"; filename="%s"\r\n'
    b'Content-Type: image/png\r\n\r\n%s\r\n--xyz--\r\n'
)


def test_uploads_are_read_to_the_byte(monkeypatch):
    photo = bytes(range(256)) + b'\r\n\r\n--xy\r\n'
    assert app.uploaded(FORM % ('é.png'.encode(), photo)) == ('é.png', photo)
    for body in (b'', b'x', FORM % (b'', b''), FORM % (b'a.png', b''), FORM[:50]):
        with pytest.raises(UserError, match='no photo was sent; choose a file'):
            app.uploaded(body)
    monkeypatch.setattr(app, 'MAX_BODY', 1000)
    with pytest.raises(UserError, match='the photo has more than 20 MiB; give a smaller one'):
        app.uploaded(FORM % (b'a.png', bytes(1000)))


def test_runs_that_read_no_photos_say_so(site):
    page = site.home('')
    assert 'type="file"' not in page
    assert pages.NO_PHOTOS in page
    with pytest.raises(UserError, match='so a photo cannot be the query'):
        site.photo('a.png', b'')
    with served(site) as port, contextlib.closing(http.client.HTTPConnection('127.0.0.1', port)) as connection:
        connection.request('POST', '/photo', FORM % (b'a.png', b'x'))
        response = connection.getresponse()
        assert response.status == 400
        assert pages.NO_PHOTOS in response.read().decode()


def test_unknown_words_of_a_query_are_named(site, recwarn):
    page = site.home('a zzz ring <b>')
    assert page.count('lacks: zzz, &lt;, b, &gt;.</p>') == 2
    assert 'lacks' not in site.home('a red ring')
    assert not recwarn.list


def test_an_image_shows_its_captions_ranked_and_marked(site):
    own = site.data.captions_of(3)
    page = site.image(3, '')
    assert Page(page).texts['h2'][0] == site.data.image_ids[3]
    assert all(page.count(f'{caption} <small><a href="pair?row=') == 1 for caption in own)
    hits = site.runs[0].rank_captions(3)
    assert sorted(hit.index for hit in hits) == list(range(50))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    ranks = [n for n, hit in enumerate(hits, 1) if site.data.captions[hit.index] in own]
    assert f'at the ranks {", ".join(map(str, ranks))}.' in page
    assert page.count(' class="right">') == 2 * sum(rank <= pages.CAPTIONS for rank in ranks)


def test_a_pair_shows_the_hardest_negatives(site):
    data = site.data
    image = int(data.image_of_text[7])
    page = site.pair(7)
    images = [hit.index for hit in site.runs[0].rank_images(data.captions[7])]
    assert f'<span class="rank">{images.index(image) + 1}</span>' in page
    images.remove(image)
    hardest = [data.image_ids[row] for row in (image, *images[: pages.NEGATIVES])]
    assert in_order(page)[: 1 + pages.NEGATIVES] == hardest
    texts = [hit.index for hit in site.runs[0].rank_captions(image)]
    negatives = [data.captions[text] for text in texts if data.image_of_text[text] != image][: pages.NEGATIVES]
    shown = [text.rpartition(' ')[0].strip() for text in Page(page).texts['li'][: pages.NEGATIVES]]
    assert shown == negatives


def test_doubtful_pairs_are_those_of_the_audit(site, finished, tmp_path, capsys):
    command = f'jitm audit --workdir {finished} --split test --rounds 1'
    assert cli.main([*shlex.split(command)[1:], '--output', str(tmp_path)]) == 0
    capsys.readouterr()
    pairs = [json.loads(line) for line in (tmp_path / 'audit.jsonl').read_text().splitlines()][:DOUBTFUL]
    page = site.doubtful()
    assert Page(page).texts['code'].count(command) == 2
    assert in_order(page) == 2 * [pair['image_id'] for pair in pairs]
    links = [address for address in Page(page).addresses if address.startswith('pair?')]
    assert links == 2 * [f'pair?row={pair["text"]}' for pair in pairs]
    assert page.count(f'<p>{pairs[0]["caption"]}</p>') >= 2
    assert f'{pairs[0]["doubt"]:.4f}' in page


def test_any_caption_shows_its_attention(scan):
    page = scan.image(2, 'a red ring')
    assert 'alt="Attention of the words of: a red ring"' in page
    assert 'class="query' not in page  # the photo is shown once
    assert [text.split()[0] for text in Page(page).texts['label']] == ['a', 'red', 'ring']
    assert page.count(' checked') == 1
    plain = scan.image(2, '')
    assert '<h3>Attention</h3>' not in plain
    assert 'class="query' in plain
    numbered = without_pictures(scan).image(2, 'a red ring')
    assert numbered.count('<i style="opacity: ') == 3 * scan.data.counts[2]
    assert numbered.count('opacity: 1.00') >= 3


def test_mismatched_words_are_shown(site, monkeypatch):
    pair = {'caption': 'red <b>', 'image_id': 'x', 'verdict': 'x, score 1'} | WORDS
    monkeypatch.setattr(site.runs[0], 'words', lambda image, caption: pair)
    page = site.image(2, 'red <b>')
    assert page.count('<h3>Mismatched words of ') == 1
    assert page.index('<h3>Mismatched words of ') < page.index('<div class="pair">')  # in the full width
    assert '<ins>ring</ins>' in page
    assert '<b>' not in page.replace('<b style', '')


def test_pages_escape_what_is_typed_and_read(site):
    for page in (site.home(HTML), site.image(0, HTML), site.message(HTML)):
        assert Page(page).texts.get('script') is None
        assert '&lt;script&gt;' in page
    split = dataclasses.replace(site.data, captions=(HTML,) * 50, image_ids=(HTML,) * 10)
    hostile = dataclasses.replace(site, data=split)
    for page in (hostile.home(''), hostile.home('a'), hostile.image(1, ''), hostile.pair(7)):
        assert Page(page).texts.get('script') is None
        assert '&lt;script&gt;' in page


def test_pages_work_below_the_path_of_a_proxy(site, monkeypatch):
    monkeypatch.setattr(Site, '_reads_photos', True)
    text = int(np.flatnonzero(site.data.image_of_text == 3)[0])
    addresses = {}
    shown = [site.home(''), site.home('a red ring'), site.image(3, ''), site.pair(text), site.doubtful()]
    for page in (*shown, site.message('none')):
        for _, values in Page(page).attributes:
            for address in filter(None, map(values.get, ('href', 'action', 'src'))):
                if not address.startswith('data:'):
                    addresses[address.partition('?')[0]] = address
    assert addresses.keys() == {'./', 'image', 'pair', 'doubtful', 'photo'}
    with served(site) as port:
        for name, address in addresses.items():
            status, _, _ = get(port, urljoin('/', address))
            assert status == (405 if name == 'photo' else 200), address  # a form posts photos


def test_empty_and_long_queries(site):
    for query in ('', '   '):
        page = site.home(query)
        assert Page(page).texts['h2'] == ['Some images']
        assert len(in_order(page)) == 10
    chips = [values['href'] for _, values in Page(page).attributes if values.get('class') == 'chip']
    captions = {parse_qs(urlsplit(address).query)['q'][0] for address in chips[:-1]}
    assert len(captions) == pages.EXAMPLES
    assert captions < {*site.data.captions}
    assert chips[-1] == 'doubtful'
    with pytest.raises(UserError, match='the caption has 10,000 characters; give at most 1,000'):
        site.home('dog ' * 2500)
    assert site.home('x' * MAX_CHARACTERS)


def test_pictures_come_from_the_given_folder_only(tmp_path):
    """An id of the data may contain '..'; a link is of the owner of the folder."""
    folder = tmp_path / 'photos'
    folder.mkdir()
    for name in ('../secret.png', 'own.png', 'two.jpg', 'two.png'):
        Image.new('RGB', (8, 6)).save(folder / name)
    (folder / 'link.png').symlink_to(tmp_path / 'secret.png')
    split = types.SimpleNamespace(image_ids=('own', 'link', '../secret', str(tmp_path / 'secret'), 'two'), pixels=None)
    assert pixels_of(split, 0, folder).shape == pixels_of(split, 1, folder).shape == (6, 8, 3)
    several = r'two.jpg and \S+two.png both have the name of the image two'
    for image, message in ((2, 'has no file'), (3, 'has no file'), (4, several)):
        with pytest.raises(UserError, match=message):
            pixels_of(split, image, folder)


@contextlib.contextmanager
def served(site, host='127.0.0.1'):
    """Serves a site in a thread, as if it were bound to a host; yields its port."""
    import uvicorn

    # Without a config of logging, which would close the stream that pytest captures.
    config = uvicorn.Config(
        app.make_app(site, host), port=0, log_config=None, h11_max_incomplete_event_size=app.MAX_REQUEST
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def get(port, path, **headers):
    """Returns status, headers and text of a page; the path is sent as it is."""
    with contextlib.closing(http.client.HTTPConnection('127.0.0.1', port)) as connection:
        connection.request('GET', path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


NOT_FOUND = [
    '/nope',
    *('/image?row=99', '/pair?row=99', '/image', '/image/../../etc/passwd', '/%2e%2e/README.md', '/image?row=x'),
    *('/pair?row=1e3', f'/image?row={"9" * 5000}'),
]


def test_only_pages_are_served(site):
    with served(site) as port:
        status, headers, page = get(port, '/?q=a+red+ring')
        assert status == 200
        assert in_order(page)
        assert "default-src 'none'" in headers['Content-Security-Policy']
        assert 'script' not in headers['Content-Security-Policy']
        for path in NOT_FOUND:
            status, _, page = get(port, path)
            assert status == 404, path
            assert app.MISSING in page
            assert 'action="./"' in page
        status, _, page = get(port, f'/?{urlencode({"q": "é" * 10_000})}')
        assert status == 400
        assert 'the caption has 10,000 characters' in page
        for name in ('attacker.example', 'localhost.attacker.example:8765', ''):
            status, _, text = get(port, '/', Host=name)
            assert (status, text) == (400, app.FOREIGN)
        assert '--host' in app.FOREIGN
        for name in (f'localhost:{port}', f'[::1]:{port}', 'LOCALHOST'):
            assert get(port, '/?q=a+red+ring', Host=name)[0] == 200


LOCAL = ('localhost', '127.0.0.1', '[::1]')


@pytest.mark.parametrize(
    ('host', 'addresses', 'allowed'),
    [
        ('127.0.0.2', ['127.0.0.2'], [*LOCAL, '127.0.0.2']),
        ('debian', ['127.0.1.1'], [*LOCAL, 'debian']),
        ('localhost', ['::1', '127.0.0.1'], [*LOCAL]),
        ('both', ['127.0.0.1', '192.0.2.7'], ['*']),
        ('0.0.0.0', ['0.0.0.0'], ['*']),
        ('fe80::1%eth0', ['fe80::1%eth0'], ['*']),
    ],
)
def test_names_of_this_machine_are_allowed_on_its_own_addresses(host, addresses, allowed, monkeypatch):
    def resolve(name, port, **options):
        assert name == host
        return [(None, None, None, '', (address, 0)) for address in addresses]

    monkeypatch.setattr('socket.getaddrinfo', resolve)
    assert sorted(app.allowed_hosts(host)) == sorted(allowed)


SERVED = """
import time
from jitm.serving.explorer.app import bind, serve
class Site:
    def home(self, caption):
        print('asked', flush=True)
        time.sleep(5)
bound = bind('127.0.0.1', 0)
print(bound.getsockname()[1], flush=True)
serve(Site(), '127.0.0.1', bound)
"""


@pytest.mark.slow
def test_second_signal_ends_a_page_that_is_computed():
    process = subprocess.Popen(
        [sys.executable, '-c', SERVED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        port = int(process.stdout.readline())
        while process.poll() is None:
            with contextlib.suppress(ConnectionRefusedError):
                connection = socket.create_connection(('127.0.0.1', port))
                break
            time.sleep(0.05)
        with connection:
            connection.sendall(b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
            assert process.stdout.readline() == 'asked\n'
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.1)
            assert process.communicate() == ('', '')
            assert process.returncode == 0
    finally:
        process.kill()


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (['--photos', 'nowhere', '--port', '0'], 'nowhere is not a folder'),
        (['--host', '203.0.113.7'], 'the page cannot be served at 203.0.113.7:8765'),
        (['--host', '2001:db8::7'], 'the page cannot be served at [2001:db8::7]:8765'),
        (['--split', 'nothing', '--port', '0'], "'nothing'"),
    ],
)
def test_wrong_flags_are_one_sentence(arguments, sentence, finished, capsys):
    assert cli.main(['explorer', '--workdir', str(finished), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_the_next_free_port_is_taken_and_printed(finished, capsys, monkeypatch):
    ports = []
    monkeypatch.setattr('jitm.commands.explorer.serve', lambda site, host, bound: ports.append(bound.getsockname()[1]))
    assert cli.main(['explorer', '--workdir', str(finished), '--port', '0']) == 0
    assert f'open http://127.0.0.1:{ports[0]};' in capsys.readouterr().out
    with app.bind('127.0.0.1', 0) as other:
        taken = other.getsockname()[1]
        assert cli.main(['explorer', '--workdir', str(finished), '--port', str(taken)]) == 0
        output = capsys.readouterr().out
        assert taken < ports[1] < taken + app.PORTS
        assert f'port {taken} is taken, {ports[1]} is the next free one\nopen http://127.0.0.1:{ports[1]};' in output
        monkeypatch.setattr(app, 'PORTS', 1)
        assert cli.main(['explorer', '--workdir', str(finished), '--port', str(taken)]) == 2
    assert f'cannot be served at 127.0.0.1:{taken} (Address already in use)' in capsys.readouterr().err


def test_an_image_that_cannot_be_read_any_more_is_named(finished, site, monkeypatch):
    """Without it, all later images would be shown instead of those before them."""
    index = types.SimpleNamespace(unreadable={'b.jpg': 'is damaged or cut off: replace the file, or leave it out'})
    monkeypatch.setattr(explored, 'Index', types.SimpleNamespace)
    monkeypatch.setattr(LoadedRun, 'index', lambda *arguments: index)
    with pytest.raises(UserError, match=r'^b\.jpg of scenes/test is damaged or cut off: replace the file'):
        Explored(LoadedRun(load_run(finished)), site.data)


@pytest.fixture(scope='module')
def browser():
    from playwright import sync_api as playwright

    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'])
        yield launched
        launched.close()


def type_query(page, query):
    page.fill('input[name=q]', query)
    page.press('input[name=q]', 'Enter')
    page.wait_for_load_state()


def without_pictures(site):
    """The same runs on a split that has features only, and long names."""
    names = tuple(f'{name}_{"0123456789" * 4}.jpg' for name in site.data.image_ids)
    return dataclasses.replace(site, data=dataclasses.replace(site.data, pixels=None, image_ids=names))


@pytest.mark.needs('playwright', CHROMIUM)
def test_a_browser_types_clicks_and_runs_no_script(browser, scan, site):
    with served(site) as port, served(scan) as scan_port, contextlib.closing(browser.new_page()) as page:
        page.set_default_timeout(600_000)
        dialogs = []
        page.on('dialog', lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(f'http://127.0.0.1:{port}/')
        type_query(page, '')
        assert page.locator('h2').inner_text() == 'Some images'
        type_query(page, site.data.captions[7])
        names = page.locator('article code').all_inner_texts()
        page.locator('article a').first.click()
        page.wait_for_load_state()
        assert page.locator('h2').first.inner_text() == names[0]
        page.get_by_text('hard negatives').first.click()
        page.wait_for_load_state()
        assert page.locator('h3').first.inner_text() == 'The pair'
        type_query(page, HTML)
        assert page.input_value('input[name=q]') == HTML
        assert page.title() == f'{HTML} · jitm explorer'
        page.set_viewport_size({'width': 400, 'height': 800})
        page.emulate_media(color_scheme='dark')
        style = 'getComputedStyle(document.body)'
        assert page.evaluate(f'{style}.backgroundColor') == 'rgb(22, 21, 20)'
        assert page.evaluate(f'{style}.color') == 'rgb(236, 236, 234)'
        for address in ('/', '/?q=a+red+ring', '/image?row=2&q=a+red+ring', '/pair?row=7', '/doubtful'):
            page.goto(f'http://127.0.0.1:{port}{address}')
            assert page.evaluate('document.documentElement.scrollWidth') == 400, address
        page.goto(f'http://127.0.0.1:{scan_port}/image?row=2&q=a+red+ring')
        overlay = page.locator('.overlay:visible')
        assert overlay.count() == 1
        page.get_by_label('ring').check(force=True)
        page.mouse.move(0, 0)
        assert page.locator('label:has(.overlay:visible)').inner_text().startswith('ring')
        picture = page.get_by_alt_text('Attention of the words of: a red ring')
        assert picture.bounding_box() == overlay.bounding_box()
        assert dialogs == []
