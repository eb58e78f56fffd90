"""The functions and classes that sections of a config configure; the keys of a section are their arguments."""

import functools

from jitm.config import overrides
from jitm.config.overrides import Section
from jitm.data.load import CHANGES
from jitm.importers.text_folders import read_folder
from jitm.layers.lora import LoRA
from jitm.training.members import RULES, Member
from jitm.training.objective import RankingTerm

_MODEL = Section('name', 'jitm.models', own=True, kept=('embed_dim',))  # which its modules read, too
SECTIONS = {  # pattern of the dotted key -> its section; the first match counts
    'terms.*': Section('loss', 'jitm.losses', own=True, further=(RankingTerm,)),
    'model': _MODEL,
    'members.*.model': _MODEL,
    '*model.text': Section('name', 'jitm.layers', own=True, further=(read_folder,)),
    '*model.*': Section('name', 'jitm.layers', own=True),
    'members.*.lora': Section('', '', further=(LoRA,)),
    'members.*': Section('', '', further=(Member, *RULES.values())),
    'optimizer': Section('name', 'jitm.training.optimizer', own=True),
    'data': Section('source', 'jitm.data', own=True, further=tuple(CHANGES)),
    'candidates': Section('source', 'jitm.training.sources', own=True),
    'labels': Section('source', 'jitm.training.sources.labels', own=True),
    'relevance': Section('source', 'jitm.data'),
    'scene_graphs': Section('source', 'jitm.data'),
}

override = functools.partial(overrides.override, sections=SECTIONS)  # (config, given) -> config
