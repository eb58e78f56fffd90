"""Statistics from the text of a compiled program: bytes through memory, cycles, collectives, padding.

A loop's body counts as often as it runs, a conditional as its most expensive case. The instructions of a
fusion are one pass through memory. Arrays that a TPU keeps on the chip, memory space 1 and above, move no bytes.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

BYTES = {'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2, 's32': 4, 'u32': 4, 'f32': 4}
BYTES |= {'s64': 8, 'u64': 8, 'f64': 8, 's4': 0.5, 'u4': 0.5}
ARRAY = re.compile(r'(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?')
INSTRUCTION = re.compile(r'\s*(?:ROOT )?%?([\w.-]+) = (.*)')
COMPUTATION = re.compile(r'(ENTRY )?%?([\w.-]+) (?:\(.*\) -> .*)?\{')
FREE = {'parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast', 'after-all', 'iota', 'partition-id'}
COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'collective-permute', 'all-to-all')
SLICES = {'dynamic-slice', 'gather', 'slice'}
UPDATES = {'dynamic-update-slice': 1, 'scatter': 2}  # in place; the operand that is written


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of a program.

    Attributes:
      dtype: The element type, as in HLO.
      shape: The dimensions.
      layout: The dimensions from the minor one to the major one.
      tiling: The text after the layout, such as 'T(8,128)S(1)'.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...]
    tiling: str

    @property
    def in_memory(self) -> bool:
        """Whether it is in the memory of the device, not on the chip."""
        return not re.search(r'S\([1-9]', self.tiling)

    @property
    def num_bytes(self) -> float:
        """Bytes of its elements."""
        return BYTES.get(self.dtype, 4) * math.prod(self.shape)

    @property
    def padded_bytes(self) -> float:
        """Bytes with the padding of its minor dimensions to tiles."""
        tile = re.match(r'T\(([\d,]+)\)', self.tiling)
        if not tile or not self.shape:
            return self.num_bytes
        sizes = [self.shape[dim] for dim in self.layout]
        for n, step in enumerate(reversed([int(step) for step in tile[1].split(',')])):
            if n < len(sizes):
                sizes[n] = -(-sizes[n] // step) * step
        return BYTES.get(self.dtype, 4) * math.prod(sizes)

    def __str__(self) -> str:
        return f'{self.dtype}[{",".join(map(str, self.shape))}]'


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a computation; `attributes` is the text after its operands."""

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def source(self) -> str:
        """The operation of the traced function that it comes from."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else self.name

    @property
    def cycles(self) -> int:
        """The compiler's estimate."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match else 0

    @property
    def called(self) -> tuple[str, ...]:
        """The computations of a fusion or call."""
        return tuple(re.findall(r'(?:calls|to_apply)=%?([\w.-]+)', self.attributes))

    @property
    def collective(self) -> str:
        """The kind of a collective, else the opcode; a TPU fuses the parts of some reduce-scatters."""
        fused = any(name.startswith('all-reduce-scatter') for name in self.called)
        return 'reduce-scatter' if fused else self.opcode.removesuffix('-start')

    @property
    def branches(self) -> tuple[str, ...]:
        """The alternative computations of a conditional."""
        listed = re.search(r'branch_computations=\{([^}]*)\}', self.attributes)
        if listed:
            return tuple(name.strip().lstrip('%') for name in listed[1].split(','))
        return tuple(re.findall(r'(?:true|false)_computation=%?([\w.-]+)', self.attributes))


def _until_closed(text: str) -> int:
    """Returns the index after the parenthesis that closes the first one."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if not depth:
            return index + 1
    return len(text)


def _parse_arrays(text: str) -> tuple[Array, ...]:
    def numbers(listed: str | None) -> tuple[int, ...]:
        return tuple(int(number) for number in listed.split(',')) if listed else ()

    return tuple(
        Array(dtype, numbers(shape), numbers(layout), tiling or '')
        for dtype, shape, layout, tiling in ARRAY.findall(text)
    )


def _parse_instruction(line: str) -> Instruction | None:
    if not (match := INSTRUCTION.match(line)):
        return None
    name, text = match.groups()
    end = _until_closed(text) if text.startswith('(') else text.index(' ')
    arrays, text = text[:end], text[end:].lstrip()
    opcode, _, _ = text.partition('(')
    text = text[len(opcode) :]
    end = _until_closed(text)
    values = opcode in ('constant', 'parameter')  # in place of operands, a value or a number
    operands = (text[1 : end - 1],) if values else tuple(re.findall(r'%([\w.-]+)', text[:end]))
    return Instruction(name, _parse_arrays(arrays), opcode, operands, text[end:])


@dataclasses.dataclass
class Cost:
    """The cost of a computation.

    Attributes:
      num_bytes: Bytes that go through the memory of a device.
      cycles: The compiler's cycles.
      uncounted: Bytes of the instructions without an estimate, such as sorts.
      collectives: Kind -> number and bytes that a device receives; twice its size for an all-reduce.
      hot: (operation, arrays) -> cycles.
      dynamic_loops: The number of loops whose length is only known when they run; their bodies count once.
    """

    num_bytes: float = 0
    cycles: float = 0
    uncounted: float = 0
    collectives: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    hot: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    dynamic_loops: int = 0

    def add(self, cost: 'Cost', times: int = 1) -> None:
        """Adds another cost several times."""
        self.num_bytes += times * cost.num_bytes
        self.cycles += times * cost.cycles
        self.uncounted += times * cost.uncounted
        self.dynamic_loops += cost.dynamic_loops
        for mine, theirs in ((self.collectives, cost.collectives), (self.hot, cost.hot)):
            for key, value in theirs.items():
                mine[key] += times * value


class Program:
    """A compiled program."""

    def __init__(self, text: str):
        """Parses the result of `compiled.as_text()`."""
        self._computations: dict[str, dict[str, Instruction]] = {}
        self._entry, current = '', {}
        for line in text.splitlines():
            if line and not line[0].isspace() and (match := COMPUTATION.match(line)):
                current = self._computations[match[2]] = {}
                self._entry = match[2] if match[1] else self._entry
            elif instruction := _parse_instruction(line):
                current[instruction.name] = instruction

    @functools.cached_property
    def cost(self) -> Cost:
        """The cost of the whole program."""
        return self._cost(self._entry)

    def padded_arrays(self, least_bytes: float = 2**20) -> list[tuple[float, Array]]:
        """Returns the factor of padding of each large array that an instruction writes, the highest first."""
        arrays = {
            array
            for computation in self._reached(self._entry)
            for instruction in self._computations[computation].values()
            if instruction.opcode not in FREE
            for array in instruction.arrays
            if array.padded_bytes >= least_bytes
        }
        return sorted(
            ((array.padded_bytes / array.num_bytes, array) for array in arrays if array.num_bytes), key=lambda x: -x[0]
        )

    def products_of(self, dtype: str) -> Iterator[Instruction]:
        """Yields the matrix products with an operand of a dtype."""
        for computation in self._computations.values():
            for instruction in computation.values():
                operands = [computation.get(name) for name in instruction.operands]
                types = {array.dtype for operand in operands if operand for array in operand.arrays}
                if instruction.opcode in ('convolution', 'dot') and dtype in types:
                    yield instruction

    def opcodes(self) -> collections.Counter:
        """Counts the instructions by opcode and, for custom calls, by target."""
        counts = collections.Counter()
        for computation in self._computations.values():
            for instruction in computation.values():
                target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
                counts[target[1] if target else instruction.opcode] += 1
        return counts

    def _reached(self, name: str) -> set[str]:
        """Returns the computations that run by themselves, not within fusions."""
        reached, waiting = set(), [name]
        while waiting:
            reached.add(name := waiting.pop())
            for instruction in self._computations[name].values():
                if instruction.opcode == 'while':
                    waiting.append(self._body(instruction)[0])
                elif instruction.opcode in ('call', 'conditional', 'async-start'):
                    waiting += [*instruction.called, *instruction.branches]
        return reached

    @functools.cache  # noqa: B019 (a program lives as long as its process needs it)
    def _cost(self, name: str) -> Cost:
        total, computation = Cost(), self._computations[name]
        for instruction in computation.values():
            if instruction.opcode in FREE:
                continue
            if instruction.opcode == 'while':
                body, trips = self._body(instruction)
                total.dynamic_loops += trips is None
                total.add(self._cost(body), 1 if trips is None else trips)
            elif instruction.opcode == 'conditional':
                total.add(max(map(self._cost, instruction.branches), key=lambda c: (c.cycles, c.num_bytes)))
            elif instruction.opcode in ('call', 'async-start'):
                for called in instruction.called:
                    total.add(self._cost(called))
            else:
                moved = self._moved(instruction, computation)
                overlapped = instruction.opcode.endswith(('-start', '-done')) or instruction.opcode in COLLECTIVES
                total.num_bytes += moved
                total.cycles += instruction.cycles
                total.uncounted += 0 if instruction.cycles or overlapped else moved
                label = instruction.source, ' '.join(map(str, instruction.arrays[:2]))
                total.hot[label] += instruction.cycles
                self._count_collectives(instruction, computation, total)
        return total

    def _body(self, loop: Instruction) -> tuple[str, int | None]:
        """Returns the body of a loop and how often it runs, None if this is not constant."""
        body = re.search(r'body=%?([\w.-]+)', loop.attributes)[1]
        trips = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if trips:
            return body, int(trips[1])
        condition = self._computations[re.search(r'condition=%?([\w.-]+)', loop.attributes)[1]]
        constants = [i for i in condition.values() if i.opcode == 'constant' and i.arrays[0].dtype == 's32']
        compared = [i for i in condition.values() if i.opcode == 'compare' or 'calls=' in i.attributes]
        if len(constants) == 1 and any(constants[0].name in i.operands for i in compared):
            return body, int(constants[0].operands[0])
        return body, None

    def _count_collectives(self, instruction: Instruction, computation: dict[str, Instruction], total: Cost) -> None:
        instructions = [(instruction, computation)]
        if instruction.opcode == 'fusion':
            # An overlapped collective occurs in several fusions; the first of them starts it.
            fused = [self._computations[name] for name in instruction.called]
            started = [c for c in fused if any('AsyncCollectiveStart' in i.attributes for i in c.values())]
            instructions += [(i, c) for c in started for i in c.values()]
        for collective, around in instructions:
            if (kind := collective.collective) in COLLECTIVES:
                operand_bytes = sum(array.num_bytes for name in collective.operands for array in around[name].arrays)
                result = sum(array.num_bytes for array in collective.arrays)
                if kind == 'all-gather':  # an all-gather-start returns its operands too
                    received = result - operand_bytes * collective.opcode.endswith('-start')
                else:
                    received = 2 * operand_bytes if kind == 'all-reduce' else operand_bytes
                total.collectives[kind, 'number'] += 1
                total.collectives[kind, 'bytes'] += received

    def _moved(self, instruction: Instruction, computation: dict[str, Instruction]) -> float:
        """Returns the bytes that an instruction reads from memory and writes to it."""
        if instruction.opcode == 'custom-call' and 'AllocateBuffer' in instruction.attributes:
            return 0
        fused = self._computations[instruction.called[0]] if instruction.opcode == 'fusion' else {}
        read = 0.0
        for number, name in enumerate(instruction.operands if not instruction.opcode.endswith('-done') else ()):
            if operand := computation.get(name):
                full = sum(array.num_bytes for array in operand.arrays if array.in_memory)
                read += min(full, self._read_of(number, instruction.called[0])) if fused and full else full
        if instruction.opcode in SLICES:
            read = min(read, sum(a.num_bytes for a in instruction.arrays))
        if instruction.opcode in UPDATES:
            update = computation[instruction.operands[UPDATES[instruction.opcode]]]
            return 2 * sum(array.num_bytes for array in update.arrays)
        written = 0.0
        if not instruction.opcode.endswith('-start'):
            updates = {
                str(i.arrays[0]): fused[i.operands[UPDATES[i.opcode]]].arrays[0].num_bytes
                for i in fused.values()
                if i.opcode in UPDATES
            }
            written = sum(updates.get(str(array), array.num_bytes) for array in instruction.arrays if array.in_memory)
        return read + written

    def _read_of(self, number: int, name: str) -> float:
        """Returns the bytes that a fused computation reads from a parameter; if it is only sliced, from its slices."""
        fused = self._computations[name]
        waiting = [i.name for i in fused.values() if i.opcode == 'parameter' and int(i.operands[0]) == number]
        read = 0.0
        while waiting:
            name = waiting.pop()
            for user in (i for i in fused.values() if i.opcode != 'parameter' and name in i.operands):
                if user.opcode == 'bitcast':
                    waiting.append(user.name)
                elif user.opcode in SLICES:
                    read += user.arrays[0].num_bytes
                elif user.opcode == 'fusion':
                    read += self._read_of(user.operands.index(name), user.called[0])
                elif user.opcode not in UPDATES or user.operands[0] != name:
                    return math.inf
        return read
