"""The issue forms and the workflow of the site."""

import re

import pytest
import yaml

from tests.conftest import ROOT
from tests.support.pages import fences

GITHUB = ROOT / '.github'
FORMS = GITHUB / 'ISSUE_TEMPLATE'
REQUIRED = {
    'bug': {'version', 'command', 'error', 'system'},
    'measurements': {'version', 'device', 'command', 'file'},
}


@pytest.mark.parametrize('name', REQUIRED)
def test_issue_forms_require_what_an_answer_needs(name):
    body = yaml.safe_load((FORMS / f'{name}.yml').read_text())['body']
    assert {element['id'] for element in body if element.get('validations', {}).get('required')} == REQUIRED[name]


def test_the_form_of_measurements_has_the_commands_of_the_docs():
    page = ROOT / 'docs' / 'speed.md'
    (commands,) = (block for block in fences(page, 'bash') if 'benchmarks device --json' in block)
    first, *_ = yaml.safe_load((FORMS / 'measurements.yml').read_text())['body']
    assert commands in first['attributes']['value']


def test_pages_are_the_site_that_make_docs_builds():
    steps = yaml.safe_load((GITHUB / 'workflows' / 'pages.yml').read_text())['jobs']['site']['steps']
    (folder,) = (step['with']['path'] for step in steps if 'upload-pages' in step.get('uses', ''))
    site = re.search(r'^site_dir: (.+)$', (ROOT / 'mkdocs.yml').read_text(), flags=re.MULTILINE)[1]
    assert folder == site
    assert {'run': 'make docs'} in steps
