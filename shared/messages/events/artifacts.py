"""What a job has produced, stored for its user: its model, and the files that it wrote."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from pydantic import Strict

from elasticflow.shared.messages.limits import (
    Digest,
    FewItems,
    FilePath,
    Iterations,
    MaybeUri,
    NumBytes,
    Sequence,
    Text,
    TimeS,
    Token,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file. path: below the artifact folder, or the working folder. digest: SHA-256 of all its bytes."""

    path: FilePath
    num_bytes: NumBytes
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredFile:
    """A file that stays on its node. path: on that node, as far as it can be printed."""

    path: Text
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactsStored:
    """These files of the job can be fetched. From the executor of rank 0.

    due: sequence of the message after which they were due: the job's end, or a requested checkpoint.
    model: the state dict of the model, as torch.save writes it; None if the job has none, or if it is unstored.
    uri: of the folder that has them (`artifact_folder.py`); "": the object store. iteration: of the model.
    files: of its artifact folder. outputs: what it wrote or changed in its working folder.
    num_unstored: all files that stay on the node; unstored names the first.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    due: Sequence
    node_id: Token
    iteration: Iterations = 0
    model: StoredFile | None = None
    files: Annotated[tuple[StoredFile, ...], FewItems] = ()
    outputs: Annotated[tuple[StoredFile, ...], FewItems] = ()
    unstored: Annotated[tuple[UnstoredFile, ...], FewItems] = ()
    num_unstored: Annotated[int, Strict(), Ge(0)] = 0
    uri: MaybeUri = ""
    at_s: TimeS

    @property
    def num_bytes(self) -> int:
        """Of all stored files."""
        return sum(file.num_bytes for file in self.all_files)

    @property
    def all_files(self) -> tuple[StoredFile, ...]:
        model = () if self.model is None else (self.model,)
        return (*model, *self.files, *self.outputs)
