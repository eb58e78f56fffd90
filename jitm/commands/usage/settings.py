"""List the presets, what their options mean and their published results, or print the config of one.

    jitm settings                               the systems, and the options of their presets
    jitm settings vse                           what the options of a system's presets mean
    jitm settings vse f30k                      the presets that have every option, in their own name or the system's
    jitm settings --show vse:rvse,selhn,f30k    the changes of a preset: config key: default -> value
    jitm settings --show vsepp:f30k --full      all keys of a preset, with their values

A published result is R@1 from image to text, R@1 from text to image and rsum, in percent, of a single model or of the
averaged scores of several.
"""

from jitm.commands import flags as shared

ARGUMENTS = '[OPTION...]'
FLAGS = {
    'show': shared.text('Prints the config of this preset, as NAME:OPTIONS.'),
    'full': shared.switch('With --show: prints all keys instead of the changed ones.'),
}
RULES = shared.Rules(needs={'full': 'show'})
