"""Measures the speed and memory of jitm.

    python -m benchmarks                                    # lists the benchmarks
    python -m benchmarks scoring --models saf sgr           # runs one; its flags: `scoring --help`
    python -m benchmarks members --json docs/timings.jsonl  # keeps the result for the tables of docs/notes/timings.md

Every benchmark prints a Markdown table, row by row, and adds the rows to a file of JSON lines.
"""

from benchmarks import command

NAMES = (
    *('train_step', 'scoring', 'torch_loops', 'members', 'peers', 'tags_step', 'mining', 'precision'),
    *('loader', 'memory', 'activations', 'gradient_cache', 'accelerators', 'device', 'start_up', 'scene_graphs'),
    'tables',
)

if __name__ == '__main__':
    command.main('benchmarks')
