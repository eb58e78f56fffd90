"""The sections of a config: the function or class that each of them configures, as the modules of these declare."""

from collections.abc import Mapping
from typing import Any

from jitm.config import overrides
from jitm.config import section as section_lib
from jitm.config.build import to_json
from jitm.config.section import Section
from jitm.data import load
from jitm.data.pairs.augmentation import Augmentation
from jitm.importers import named_folders, pretrained, text_folders
from jitm.layers.lora import LoRA
from jitm.models import make
from jitm.training import members, objective, optimizer, source
from jitm.training.sources import generated, labels, masked, mined, relevance

Config = Mapping[str, Any]  # sections by their keys

ADDITIONS = mined, relevance, labels, masked, generated  # modules, see `jitm.training.sources`, in this order
PARTS = {  # pattern of a dotted key -> what its section adds to a plan
    **load.SECTIONS,
    'augmentation': Section(function=Augmentation),
    **{addition.SECTION: addition.DECLARED for addition in ADDITIONS},
    'candidates': source.DECLARED,
    'initialize': pretrained.DECLARED,
    'terms.*': objective.DECLARED,
    'members.*': members.DECLARED,
    'members.*.lora': Section(function=LoRA, null={}),
    'optimizer': optimizer.DECLARED,
}
_TEXT = make.MODULE._replace(extra=(text_folders.read_folder,))
# The first pattern that matches counts.
SECTIONS = {'model.text': _TEXT, 'members.*.model.text': _TEXT, **PARTS, **make.SECTIONS}


def override(config: Config, values: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns a config with every default and the given values, see `overrides.override`."""
    return overrides.override(config, values, SECTIONS)


def complete(config: Config) -> dict[str, Any]:
    """Checks a config, and returns it with every default and without folders, see `named_folders.complete`."""
    return with_defaults(named_folders.complete(config), imports=True)


def with_defaults(config: Config, imports: bool = False) -> dict[str, Any]:
    """Returns a config as it is stored with a run, with every default, see `section.complete`."""
    return to_json(section_lib.complete(config, SECTIONS, imports))
