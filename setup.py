"""The long description of the package: README.md with absolute links, for readers without the repository."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://github.com/elasticflow/elasticflow"
PICTURES = "https://raw.githubusercontent.com/elasticflow/elasticflow/main"


def long_description() -> str:
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{PICTURES}/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)


setup(long_description=long_description(), long_description_content_type="text/markdown")
