"""Trains the runs of docs/results, compares them with their controls, and writes the tables of their pages.

python -m experiments                              # lists the commands
python -m experiments flickr8k losses --seeds 0 1  # trains the runs of a question
python -m experiments intervals                    # compares runs with their controls
python -m experiments tables                       # rewrites the tables and figures of the pages
"""

from benchmarks import command

NAMES = 'flickr8k', 'cca', 'held_out', 'intervals', 'means', 'oracle', 'provenance', 'selected', 'tables'

if __name__ == '__main__':
    command.main('experiments')
