"""The patterns of testbed/user_code/patterns.py, and the reference page that shows them.

`python -m tests.support.training_patterns` writes the page. Importing this imports no torch.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reference/training-patterns.md"
_SOURCE = Path(__file__).parents[2] / "testbed/user_code/patterns.py"

REFUSED = {
    "NoSync": "call backward() several times before optimizer.step(); their gradients add up",
    "AssignedGradients": "Call loss.backward(), which sums them over all parts",
    "GroupAddedLater": "let init_optimizer() return an optimizer of all groups, and freeze parameters by "
    "requires_grad_(False) until self.iteration says that they train",
    "TeacherInAttribute": "Make it a part of the model that init_model() returns, or return it from stateful()",
    "CenterInAttribute": "keeps self.center from step to step, which is no state of the job",
    "BatchNormOfOneSample": "set virtual_nodes (in the fast mode, max_gpus) to at most 10, or raise global_batch_size",
    "Lazy": "init_model() returned a module with uninitialized parameters (0.weight, 0.bias): run one forward pass in "
    "it, so that they have their sizes",
    "FullySharded": "Leave out DistributedDataParallel, fully_shard() and calls such as all_gather()",
    "Wrapped": "Leave out DistributedDataParallel, fully_shard() and calls such as all_gather()",
    "AllGather": "elasticflow.gather() and elasticflow.mean() give values of the whole batch",
    "Lbfgs": "use an optimizer with one pass for each step, such as torch.optim.AdamW",
    "SeveralReturned": "return one, keep the others in attributes, and let stateful() return those",
    "UnknownOptimizer": "let stateful() return it, so that it steps once, and its state is kept",
    "Plateau": "let it depend only on what all parts share, for example schedule.step(elasticflow.mean(loss)) of a "
    "ReduceLROnPlateau",
    "OwnGenerator": "draw random numbers from torch, numpy or random without seeding them",
    "SecondLoader": "such as a file, an iterator or an environment variable",
    "Replay": "the job keeps self.memory's length",
    "LayerAddedLater": "let init_model() make all of it, and use a part of it when self.iteration says so",
    "ParameterOfLoss": "Make it a part of the model that init_model() returns, or return its module from stateful()",
    "ChangingSamples": "Let the result of __getitem__() and of the collate function follow from the index",
    "UndeclaredScaler": "make it in init_optimizer() and let stateful() return it",
}


WARNED = {
    "PlainState": "train() gives self.losses another value for each part of a batch",
    "ClassWeights": "cross_entropy() with weight divides by the weights of one part of a batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """refusal: what the error of the job's first steps says to write; "": it trains. warning: what its history says."""

    job: str
    name: str
    code: str
    refusal: str
    warning: str


def _patterns() -> list[Pattern]:
    source = _SOURCE.read_text()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return [
        Pattern(
            job=node.name,
            name=ast.get_docstring(node) or "",
            code=_code(node, source),
            refusal=REFUSED.get(node.name, ""),
            warning=WARNED.get(node.name, ""),
        )
        for node in classes
        if node.name != "Base"
    ]


def _code(job: ast.ClassDef, source: str) -> str:
    """Without its docstring."""
    lines = source.splitlines()[job.body[0].end_lineno : job.end_lineno]
    return "\n".join([f"class {job.name}({ast.unparse(job.bases[0])}):", *lines]).replace("\n\n", "\n", 1)


PATTERNS = _patterns()


def page() -> str:
    ordered = sorted(PATTERNS, key=lambda each: bool(each.refusal))
    results = [_result(each) for each in ordered]
    rows = [f"| [{each.name}](#{_anchor(each)}) | {result} |" for each, result in zip(ordered, results, strict=True)]
    codes = [f"### {_heading(each)}\n\n```python\n{each.code}\n```" for each in PATTERNS]
    return "\n\n".join(
        [
            "# Training patterns",
            "`tests/training/test_training_patterns.py` trains a job of each pattern on 2, then 3, then 1 workers, "
            "stops it,\nand ends it on 4. Its state has the bits of one undisturbed worker. Other patterns are refused "
            "in the profiling run,\non any number of workers, with what to write instead. The rules behind both are "
            "in\n"
            "[reproducibility](../explanation/reproducibility.md#requirements-on-train).",
            "This page is generated: `python -m tests.support.training_patterns`.",
            "\n".join(["| pattern | on 1, 2, 3 and 4 workers |", "|---|---|", *rows]),
            "## Code",
            "Each job changes this one, or another one of the page:",
            f"```python\nclass Base(elasticflow.ElasticJob):\n{_base()}\n```",
            *codes,
        ]
    )


def _result(pattern: Pattern) -> str:
    if pattern.refusal:
        return f"refused: {pattern.refusal}"
    return f"the same bits; warned: {pattern.warning}" if pattern.warning else "the same bits"


def _heading(pattern: Pattern) -> str:
    return pattern.name.replace("`", "")


def _anchor(pattern: Pattern) -> str:
    kept = "".join(each for each in _heading(pattern).lower() if each.isalnum() or each in " -_")
    return "-".join(kept.replace("-", " ").split())


def _base() -> str:
    """Its methods that a job has."""
    source = _SOURCE.read_text()
    base = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Base")
    methods = [node for node in base.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("__")]
    return "\n\n".join(ast.get_source_segment(source, each, padded=True) or "" for each in methods)


if __name__ == "__main__":
    PAGE.write_text(page() + "\n")
