"""Files of checkpoints: written to the disk with their SHA-256, read without running code from them."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch

from elasticflow.services.executor.worker.checkpoint.shards import whole
from elasticflow.shared.messages.worker_protocol.from_worker import MODEL_FOLDER, model_file_name
from elasticflow.shared.runtime.process.files import rename_durably
from elasticflow.shared.runtime.process.logs import log


@dataclass(eq=False)
class UnreadableFile(Exception):
    """A file is no checkpoint of this job, nor a part of one."""

    reason: str


def read_state(file: BinaryIO) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", weights_only=True)


def readable_state(file: BinaryIO) -> dict[str, Any]:
    """Raises Unreadable, or OSError on a disk error."""
    try:
        state = read_state(file)
    except OSError:
        raise
    except Exception as error:  # the loader raises whatever the bytes lead to
        reason = (str(error).splitlines() or [""])[0][:200]
        raise UnreadableFile(f"it cannot be loaded: {type(error).__name__}: {reason}") from error
    if not isinstance(state, dict):
        raise UnreadableFile(f"it holds {type(state).__name__}, not a state")
    return cast(dict[str, Any], state)


def write_state(path: Path, state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the bytes once they are on the disk."""
    with path.open("wb") as file:
        stream = _Hashed(file)
        torch.save(dict(state), cast(BinaryIO, stream))
        if stream.error is not None:
            raise stream.error
        os.fsync(file.fileno())
    return stream.digest.hexdigest()


class _Hashed:
    """The file that torch.save writes to.

    error: the first disk error; nothing is written after it. torch replaces it by an error that does not name the disk.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.error: OSError | None = None
        self._file = file

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self._unless_failed(lambda: self._file.write(content))
        return len(content)

    def flush(self) -> None:
        self._unless_failed(self._file.flush)

    def _unless_failed(self, do: Callable[[], object]) -> None:
        if self.error is None:
            try:
                do()
            except OSError as error:
                self.error = error


# --- part files ----------------------------------------------------------------------------------------
# Parts of a sharded optimizer's state on the disk: each worker writes its own, and one checkpoint names them all.
#
# A part's name holds generation, iteration, rank and the SHA-256 of its content. The checkpoint is written once all
# parts are there. One whose parts are missing or damaged is no checkpoint.

_NAME = re.compile(r"g(\d{10})-i(\d{14})-p(\d{5})-([0-9a-f]{64})\.part")
_POLL_S = 0.05
SHARDS = "shards"  # in a checkpoint: files with the rows of a gang's workers, by position


class PartFiles:
    """The part files in one folder, as one generation of the job sees them."""

    def __init__(self, folder: Path, *, generation: int) -> None:
        self._folder = folder
        self._generation = generation

    def write(self, iteration: int, rank: int, part: Mapping[str, Any]) -> None:
        """Raises OSError on a disk error."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"g{self._generation:010d}-i{iteration:014d}-p{rank:05d}"
        unfinished = self._folder / f"{name}.{os.getpid()}.unfinished"
        try:
            digest = write_state(unfinished, part)
            rename_durably(unfinished, self._folder / f"{name}-{digest}.part")
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def await_all(self, iteration: int, num_workers: int, *, within_s: float) -> list[Path]:
        """One part of each worker, by rank. Raises TimeoutError."""
        deadline_s = time.monotonic() + within_s
        while True:
            found = {rank: path for path, key, rank in self._parts() if key == (self._generation, iteration)}
            if len(found) == num_workers:
                return [found[rank] for rank in range(num_workers)]
            if time.monotonic() > deadline_s:
                missing = ", ".join(str(rank) for rank in range(num_workers) if rank not in found)
                raise TimeoutError(f"the parts of ranks {missing} are not in {self._folder} after {within_s:.0f} s")
            time.sleep(_POLL_S)

    def read(self, names: Sequence[str]) -> list[dict[str, Any]] | None:
        """Return the parts with these names, or None if one is missing or damaged. Runs no code from the files."""
        parts: list[dict[str, Any]] = []
        for name in names:
            path, found = self._folder / name, _NAME.fullmatch(name)
            if found is None or not path.is_file():
                log.warning("checkpoint_part_missing", file=name)
                return None
            try:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != found[4]:
                        raise UnreadableFile("its content does not match its name")
                    file.seek(0)
                    parts.append(readable_state(file))
            except (OSError, UnreadableFile) as error:
                log.warning("damaged_checkpoint_ignored", file=name, reason=str(error))
                return None
        return parts

    def joined(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """The state with the whole state of its optimizer, or with all that a gang has divided; None if a part is
        missing or damaged."""
        if names := state.get(SHARDS):
            shards = self.read(names)
            common = {name: value for name, value in state.items() if name != SHARDS}
            return None if shards is None else whole(common, [each["shards"] for each in shards])
        if not (names := part_names(state)):
            return state
        parts = self.read(names)
        return None if parts is None else {**state, "optimizer": whole_state(parts)}

    def remove_outdated(self, kept: Collection[tuple[int, int]]) -> None:
        """Remove parts that belong to no kept checkpoint and are older than the newest one. kept: generation and
        iteration of each."""
        for path, key, _ in self._parts():
            if key not in kept and key < max(kept, default=key):
                with suppress(OSError):  # it costs space only
                    path.unlink(missing_ok=True)

    def _parts(self) -> list[tuple[Path, tuple[int, int], int]]:
        """Path, generation with iteration, rank."""
        if not self._folder.is_dir():
            return []
        matches = ((path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir())
        return [(path, (int(m[1]), int(m[2])), int(m[3])) for path, m in matches if m]


def mapped_shards(path: Path) -> list[torch.Tensor]:
    """The tensors of a part that this process has just seen complete; read when they are used."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["shards"]


def part_names(state: Mapping[str, Any]) -> Sequence[str]:
    """Files with the parts of a checkpoint's optimizer state, by rank; none if it has all of it."""
    return state.get("optimizer", {}).get("parts", ())


# --- model file ----------------------------------------------------------------------------------------
# The model alone, in a file beside the checkpoints: what the executor stores for users (docs/adr/0065).
#
# The executor does not read checkpoints: that needs torch, and they come from users' code.


def write_model(checkpoint_dir: Path, iteration: int, model: Mapping[str, Any]) -> None:
    """Replace the file with this state dict. A full disk loses the file, not the job: its checkpoint is written."""
    folder = checkpoint_dir / MODEL_FOLDER
    unfinished = folder / f"{os.getpid()}.unfinished"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / model_file_name(iteration, write_state(unfinished, model))
        rename_durably(unfinished, file)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        log.warning("model_not_written", iteration=iteration, reason=str(error))
        return
    for other in folder.iterdir():
        if other != file:
            with suppress(OSError):  # a folder, say
                other.unlink(missing_ok=True)


# --- parameter slices ---------------------------------------------------------------------------------
# How the parameters of an optimizer are divided among workers, and a whole state is made of their parts again.
#
# All parameters lie one after another, in their order in memory, in blocks of 128 elements. Each worker owns a
# contiguous range of blocks, as in the exchange of gradients. A kernel treats a block as it treats the same elements of
# the whole parameter, so a division does not change the bits of an element-wise step.

_BLOCK = 128  # elements; a multiple of all vector registers


class Slice(NamedTuple):
    """Elements of one parameter. parameter: its number in the optimizer."""

    parameter: int
    start: int
    stop: int


class SliceLayout:
    """sizes: elements of each parameter."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._firsts = [0]
        for size in sizes:
            self._firsts.append(self._firsts[-1] + -(-size // _BLOCK))

    @property
    def num_blocks(self) -> int:
        return self._firsts[-1]

    def owned(self, rank: int, num_workers: int) -> range:
        """The blocks of one worker."""
        return range(rank * self.num_blocks // num_workers, (rank + 1) * self.num_blocks // num_workers)

    def slices(self, blocks: range) -> list[Slice]:
        """The slices of these blocks, in order."""
        return list(self._slices(blocks))

    def _slices(self, blocks: range) -> Iterator[Slice]:
        for number, (first, size) in enumerate(zip(self._firsts, self._sizes, strict=False)):
            start = max(blocks.start - first, 0) * _BLOCK
            stop = min((blocks.stop - first) * _BLOCK, size)
            if start < stop:
                yield Slice(number, start, stop)


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a tensor without holes."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def overlap(one: range, other: range) -> bool:
    """Whether two ranges of blocks have some in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)


def state_of(slices: Sequence[Slice], parts: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The state of each slice, by its number. parts: `ShardedOptimizer.state_dict` of the workers that have it."""
    numbers = {each.parameter: number for number, each in enumerate(slices)}
    state: dict[int, dict[str, Any]] = {}
    for part in parts:
        for index, theirs in enumerate(map(Slice._make, part["slices"])):
            number = numbers.get(theirs.parameter)
            if number is None:
                continue
            own = slices[number]
            start, stop = max(own.start, theirs.start), min(own.stop, theirs.stop)
            if start >= stop:
                continue
            for name, value in part["state"].get(index, {}).items():
                mine = state.setdefault(number, {})
                if not is_divided(value):
                    mine[name] = value
                    continue
                joined = mine.setdefault(name, torch.empty(own.stop - own.start, dtype=value.dtype))
                joined[start - own.start : stop - own.start] = value[start - theirs.start : stop - theirs.start]
    return state


def whole_state(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state_dict of an optimizer that owns all parameters. parts: of all workers."""
    layouts = parts[0]["layouts"]
    of_parameters = state_of([Slice(number, 0, prod(shape)) for number, (shape, _) in enumerate(layouts)], parts)
    state = {
        number: {
            name: value.as_strided(*layouts[number]) if is_divided(value) else value for name, value in values.items()
        }
        for number, values in of_parameters.items()
    }
    first = 0
    groups: list[dict[str, Any]] = []
    for group, size in zip(parts[0]["param_groups"], parts[0]["group_sizes"], strict=True):
        groups.append({**group, "params": list(range(first, first + size))})
        first += size
    return {"state": state, "param_groups": groups}


def is_divided(value: Any) -> bool:
    """Whether a part of the state has one number for each element of its slice."""
    return isinstance(value, torch.Tensor) and value.dim() == 1
